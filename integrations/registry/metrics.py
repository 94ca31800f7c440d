"""What Prometheus may ask of learned models."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvferry.integrations.registry.arms import ArmName, Arms


class ModelMetrics:
    """Counters of one router, in the registry given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "kvferry_arm_requests", "Requests that arms are judged by.", ["arm"], registry=registry
        )
        self.missed = Counter(
            "kvferry_arm_missed", "Of those, missed objectives.", ["arm"], registry=registry
        )
        self.faults = Counter(
            "kvferry_model_faults",
            "Requests in which a learned model failed: the structured prediction decided.",
            ["version"],
            registry=registry,
        )
        self.refused = Counter(
            "kvferry_model_refused",
            "Versions that could not be loaded, once for each reason.",
            registry=registry,
        )
        self.rollbacks = Counter(
            "kvferry_model_rollbacks",
            "Automatic rollbacks by this router: regression (by the sequential test) or faults.",
            ["cause"],
            registry=registry,
        )
        for cause in ("regression", "faults"):
            self.rollbacks.labels(cause)
        self._registry = registry

    def watch(self, arms: Arms) -> None:
        """Also export which version plays which role."""
        self._registry.register(_Roles(arms))

    def counted(self, arm: ArmName, missed: bool) -> None:
        self.requests.labels(arm).inc()
        if missed:
            self.missed.labels(arm).inc()


class _Roles(Collector):
    def __init__(self, arms: Arms) -> None:
        self._arms = arms

    def collect(self) -> Iterator[Metric]:
        running = self._arms.running
        info = GaugeMetricFamily(
            "kvferry_model_info", "1 for each version that this router runs.", labels=["role", "version"]
        )
        for role, model in (("live", running.live), ("canary", running.canary), ("shadow", running.shadow)):
            if model is not None:
                info.add_metric([role, model.version], 1.0)
        yield info
        yield GaugeMetricFamily(
            "kvferry_model_complete",
            "1 when this router runs what the roles in the store ask for.",
            value=float(running.complete),
        )
        yield GaugeMetricFamily(
            "kvferry_model_epoch",
            "Changes of roles, as far as this router follows.",
            value=running.roles.epoch,
        )
