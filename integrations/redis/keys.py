"""Names of the keys. One hash tag, so that on a Cluster scripts and pipelines stay on one node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """Routers that share a namespace share workers, leases and streams."""

    namespace: str = "kvferry"

    @property
    def workers(self) -> str:
        """Set of the ids of published workers, the expired ones included until they are read."""
        return self._key("workers")

    @property
    def leases(self) -> str:
        """Hash: router and lease id -> entries of the lease."""
        return self._key("leases")

    @property
    def lease_expiry(self) -> str:
        """Sorted set: router and lease id -> expiry, ms of the server's clock."""
        return self._key("leases:expiry")

    @property
    def lease_totals(self) -> str:
        """Hash: router, worker and kind -> sum over live leases."""
        return self._key("leases:totals")

    @property
    def decisions(self) -> str:
        return self._key("decisions")

    @property
    def outcomes(self) -> str:
        return self._key("outcomes")

    @property
    def telemetry(self) -> str:
        """Stream: what the plugins in the workers send (`integrations/sglang/plugin/wire.py`)."""
        return self._key("telemetry")

    @property
    def learned_times(self) -> str:
        """Hash: kind and router -> when that router told its evidence, and which version of it that was."""
        return self._key("learned:times")

    @property
    def learning_routers(self) -> str:
        """Set of the routers that told how their learning is, the silent ones included until read."""
        return self._key("learning:routers")

    def learned(self, kind: str) -> str:
        """Hash: router -> its own evidence of a kind (`models/evidence.py`)."""
        return self._key(f"learned:{kind}")

    def learning(self, router: str) -> str:
        """String with a TTL: how a router's learning is."""
        return self._key(f"learning:{router}")

    def told(self, instance: str) -> str:
        """String with a TTL: the latest WorkerRecord of a plugin, for a router that starts later."""
        return self._key(f"told:{instance}")

    @property
    def clusters(self) -> str:
        """Stream: the cluster tables (`integrations/log/cluster_table.py`) that decisions refer to."""
        return self._key("clusters")

    @property
    def paths(self) -> str:
        """Hash: source, destination and transport -> what a probe measured there (`paths.py`)."""
        return self._key("paths")

    @property
    def paths_revision(self) -> str:
        """Counter: grows whenever probed paths are written."""
        return self._key("paths:revision")

    def worker(self, worker_id: str) -> str:
        return self._key(f"worker:{worker_id}")

    def load(self, worker_id: str) -> str:
        return self._key(f"load:{worker_id}")

    @property
    def model_versions(self) -> str:
        """Hash: version of a learned model -> its manifest, JSON."""
        return self._key("models:versions")

    def model_weights(self, version: str) -> str:
        """String: the weights of a version."""
        return self._key(f"models:weights:{version}")

    @property
    def model_roles(self) -> str:
        """Hash: role -> version, with the epoch of the last change (`integrations/registry/roles.py`)."""
        return self._key("models:roles")

    @property
    def model_audit(self) -> str:
        """Stream: every change of versions and roles, never cut."""
        return self._key("models:audit")

    def model_arms(self, since: int) -> str:
        """Hash with a TTL: router -> what its arms have met and missed since that epoch."""
        return self._key(f"models:arms:{since}")

    def _key(self, name: str) -> str:
        return f"{{{self.namespace}}}:{name}"
