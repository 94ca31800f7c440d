"""A policy to be judged: one of the public rules, or kvferry's own with a trained model."""

from dataclasses import dataclass, replace
from pathlib import Path

from kvferry.integrations.learning.model_source import ModelError, load_model
from kvferry.models.residual.load import corrector
from kvferry.policy.base import Policy, make
from kvferry.policy.cluster import Cluster
from kvferry.policy.correction import Corrector
from kvferry.policy.decision import STRUCTURED, Decision
from kvferry.policy.request import Request


@dataclass(frozen=True, slots=True)
class Target:
    """`corrector`: the learned model that it decides with; None: none, whatever the log's policy had.
    `trained_until_s`: Unix seconds of the last decision that this model was made from."""

    policy: Policy
    corrector: Corrector | None = None
    trained_until_s: float = 0.0

    @property
    def version(self) -> str:
        return STRUCTURED if self.corrector is None else self.corrector.version

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        """Raises NoPlanError."""
        return self.policy.decide(request, replace(cluster, corrector=self.corrector))


def target_of(name: str, url: str | None = None, namespace: str = "kvferry") -> Target:
    """`name`: a policy such as `kvferry` or `coin(0.5)`; a model's folder; or its version in the store at
    `url`. It does not explore unless the policy's own numbers say so. Raises ModelError."""
    if (name and Path(name).expanduser().is_dir()) or name.startswith("m-"):
        artifact = load_model(name, url, namespace)
        return Target(make("kvferry"), corrector(artifact), artifact.manifest.window_to_s)
    try:
        return Target(make(name))
    except ValueError as error:
        raise ModelError(f"{error}; nor is there a folder of that name", usage=True) from None
