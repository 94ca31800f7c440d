"""Boosted trees, worked out for all plans at once with numpy alone.

Features are seen as codes of one byte. All trees are complete and of one depth, so that every node's
comparison can be made for every plan, and the way down be found from the leaves up with bytes and no jumps.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvferry.models.residual.base import F32, fast_rows
from kvferry.models.residual.tensors import Tensors
from kvferry.policy.candidates import Floats, Ints
from kvferry.policy.correction import QUANTILES

Bytes = NDArray[np.uint8]
LEAST, MOST = np.float32(0.0), np.float32(255.0)
# For so many numbers of plans thresholds are kept repeated: comparing is twice as fast then.
KEPT = 4


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """E ensembles of T trees each, the shorter ones filled up with trees that add nothing.

    `feature` is [nodes * E * T], the nodes (in levels from the root) varying slowest, `threshold` [nodes,
    E * T, 1]; `leaf` has the leaves of all trees one after the other, `start` [E * T, 1] where a tree's
    begin. `base`: [E, 1].
    """

    feature: Ints
    threshold: Bytes
    leaf: F32
    start: Ints
    base: F32
    repeated: dict[int, Bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Tensors, ensembles: list[int]) -> "Trees":
        """Of these ensembles of verified tensors."""
        counts = tensors["trees"].astype(np.intp)
        ends = counts.cumsum()
        longest = max(1, int(counts[ensembles].max())) if ensembles else 1
        nodes, leaves = tensors["feature"].shape[1], tensors["leaf"].shape[1]
        shape = (len(ensembles), longest)
        feature = np.zeros((*shape, nodes), np.intp)
        threshold = np.full((*shape, nodes), 255, np.uint8)
        leaf = np.zeros((*shape, leaves), np.float32)
        for place, ensemble in enumerate(ensembles):
            own, count = slice(ends[ensemble] - counts[ensemble], ends[ensemble]), counts[ensemble]
            feature[place, :count] = tensors["feature"][own]
            threshold[place, :count] = tensors["threshold"][own]
            leaf[place, :count] = tensors["leaf"][own]
        trees = len(ensembles) * longest
        return cls(
            feature=np.ascontiguousarray(feature.reshape(trees, nodes).T).ravel(),
            threshold=np.ascontiguousarray(threshold.reshape(trees, nodes).T)[:, :, np.newaxis],
            leaf=leaf.ravel(),
            start=(np.arange(trees) * leaves)[:, np.newaxis],
            base=tensors["base"][ensembles][:, np.newaxis],
        )

    def sums(self, codes: Bytes) -> F32:
        """[F, P] -> [E, P]."""
        plans = codes.shape[1]
        nodes, trees, _ = self.threshold.shape
        right = codes.take(self.feature, axis=0, mode="clip").reshape(nodes, trees, plans) > self._over(plans)
        values = self.leaf.take(_leaves(right.view(np.uint8)) + self.start, mode="clip")
        found: F32 = values.reshape(len(self.base), -1, plans).sum(axis=1)
        found += self.base
        return found

    def _over(self, plans: int) -> Bytes:
        """[nodes, E * T, P]: the thresholds."""
        found = self.repeated.get(plans)
        if found is None:
            if len(self.repeated) >= KEPT:
                self.repeated.clear()
            found = self.repeated[plans] = np.repeat(self.threshold, plans, axis=2)
        return found


def _leaves(right: Bytes) -> Bytes:
    """[nodes, T, P] of 0 and 1 (to the right) -> [T, P], the leaf where one ends up."""
    half = (len(right) + 1) // 2
    found, bit = right[half - 1 :], 1
    while half > 1:
        half //= 2
        bit *= 2
        upper = right[half - 1 : 2 * half - 1]
        to_left, to_right = found[0::2], found[1::2] | np.uint8(bit)
        to_right ^= to_left
        to_right *= upper
        to_right ^= to_left
        found = to_right
    leaf: Bytes = found[0]
    return leaf


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """An ensemble for every quantile of every target."""

    zero: F32
    per_step: F32
    fast: Trees
    all: Trees

    @classmethod
    def of(cls, tensors: Tensors, targets: tuple[str, ...]) -> "Forest":
        """Of verified tensors."""
        medians = [row * len(QUANTILES) for row in fast_rows(targets)]
        return cls(
            zero=tensors["zero"][:, np.newaxis],
            per_step=np.reciprocal(tensors["step"])[:, np.newaxis],
            fast=Trees.of(tensors, medians),
            all=Trees.of(tensors, list(range(len(targets) * len(QUANTILES)))),
        )

    def medians(self, features: Floats) -> F32:
        return self.fast.sums(codes(features, self.zero, self.per_step))

    def quantiles(self, features: Floats) -> F32:
        found = self.all.sums(codes(features, self.zero, self.per_step))
        found = found.reshape(-1, len(QUANTILES), features.shape[1])
        return np.maximum.accumulate(found, axis=1)


def codes(features: Floats | F32, zero: F32, per_step: F32) -> Bytes:
    """[F, P] -> [F, P]: rint((x - zero) / step), from 0 to 255."""
    x = features.astype(np.float32)
    x -= zero
    x *= per_step
    np.rint(x, out=x)
    np.clip(x, LEAST, MOST, out=x)
    return x.astype(np.uint8)
