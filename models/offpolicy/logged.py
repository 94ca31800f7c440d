"""Logged decisions as off-policy estimates need them: what was done, how likely it was, what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# The measures of a policy. Attainment: 1 where every objective was met, else 0.
MEASURES = ("slo_attainment", "ttft_s", "itl_s")
# What is known of a request under each mode before it is served: the numbers of `predicted`.
SHOWN = ("ttft_s", "itl_s", "ttft_over_slo", "itl_over_slo", "log_prompt_tokens", "log_output_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class Logged:
    """N decisions in the order of time. Two actions: 0 is colocated, 1 is split.

    `split`: the action taken; `propensity`: the probability with which it was, the other one having the rest.
    `target_split`: the probability of a split under the policy that is judged. `predicted` is [2, N, 6]
    (SHOWN), by action; NaN where that mode had no plan. `values`: measure -> [N], NaN where nobody knows.
    """

    split: Bools
    propensity: Floats
    target_split: Floats
    predicted: Floats
    values: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.split)

    @property
    def logging(self) -> Floats:
        """[2, N] probability of each action when it was logged."""
        split = np.where(self.split, self.propensity, 1.0 - self.propensity)
        return np.array((1.0 - split, split))

    @property
    def target(self) -> Floats:
        """[2, N] probability of each action under the policy that is judged."""
        return np.array((1.0 - self.target_split, self.target_split))

    @property
    def weights(self) -> Floats:
        """[N] importance weights of the actions taken: target over logging probability."""
        there = np.where(self.split, self.target_split, 1.0 - self.target_split)
        return np.asarray(there / self.propensity)

    def only(self, rows: Bools) -> "Logged":
        return Logged(
            self.split[rows],
            self.propensity[rows],
            self.target_split[rows],
            self.predicted[:, rows],
            {name: found[rows] for name, found in self.values.items()},
        )
