"""What Prometheus may ask of the health of learning."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvferry.integrations.registry.health_watch import Learning


def watch(registry: CollectorRegistry, learning: Learning) -> None:
    """Export it with the rest of the router's metrics."""
    registry.register(_Learning(learning))


class _Learning(Collector):
    """As of the last look, some seconds ago."""

    def __init__(self, learning: Learning) -> None:
        self._learning = learning

    def collect(self) -> Iterator[Metric]:
        yield from self._terms()
        yield from self._shares()
        evidence = GaugeMetricFamily(
            "kvferry_learning_evidence",
            "Samples behind the online models, since the start.",
            labels=["model"],
        )
        for name, count in self._learning.snapshot.evidence.items():
            evidence.add_metric([name], count)
        yield evidence
        snapshot = self._learning.snapshot
        missing = GaugeMetricFamily(
            "kvferry_learning_input_arrived",
            "Share of requests, of those that should have told it, that did: 0 is a dead input.",
            labels=["input"],
        )
        for name, told in (*snapshot.inputs.items(), *snapshot.features.items()):
            if told.asked:
                missing.add_metric([name], told.arrived / told.asked)
        yield missing
        constant = GaugeMetricFamily(
            "kvferry_learning_feature_constant", "1 where a feature does not vary.", labels=["feature"]
        )
        for name, told in snapshot.features.items():
            constant.add_metric([name], float(told.constant))
        yield constant
        state = GaugeMetricFamily(
            "kvferry_learning_state", "0 ok, 1 warn, 2 bad: see kvferry models health.", labels=["check"]
        )
        for check in dict.fromkeys(finding.check for finding in self._learning.findings):
            of_check = [finding.state.rank for finding in self._learning.findings if finding.check == check]
            state.add_metric([check], float(max(of_check)))
        yield state

    def _terms(self) -> Iterator[Metric]:
        labels = ["term", "mode"]
        samples = GaugeMetricFamily("kvferry_learning_samples", "Measured since the start.", labels=labels)
        coverage = GaugeMetricFamily(
            "kvferry_learning_coverage", "Share under the predicted p90 of late: 0.9 is right.", labels=labels
        )
        off = GaugeMetricFamily(
            "kvferry_learning_off", "ln(actual / predicted median), the median of late.", labels=labels
        )
        drift = GaugeMetricFamily("kvferry_learning_drift", "By how much that has changed.", labels=labels)
        for name, term in self._learning.snapshot.terms.items():
            place = list(name.split("/"))
            samples.add_metric(place, term.samples)
            coverage.add_metric(place, term.coverage or 0.0)
            off.add_metric(place, term.off)
            drift.add_metric(place, term.drift)
        return iter((samples, coverage, off, drift))

    def _shares(self) -> Iterator[Metric]:
        """Of the window's requests."""
        snapshot = self._learning.snapshot
        share = GaugeMetricFamily("kvferry_learning_share", "Of requests of late.", labels=["of"])
        for name in ("safe", "rescued", "failed", "split"):
            share.add_metric([name], snapshot.share(getattr(snapshot, name)))
        share.add_metric(["fallback"], sum(snapshot.fallbacks.values()) / max(1, snapshot.learned))
        yield share
