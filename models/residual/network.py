"""A small quantile network, worked out with numpy alone.

h1 = relu(A1 x + b1), h2 = relu(A2 h1 + b2), o = A3 h2 + b3, three outputs per target:
q50 = s o0, q90 = q50 + s g(o1), q99 = q90 + s g(o2), with g(z) = (z + sqrt(z^2 + 4)) / 2 > 0: as a
softplus, without its exponential. s is the target's scale; A1 and b1 standardise the inputs as well.
"""

from dataclasses import dataclass

import numpy as np

from kvferry.models.residual.base import F32, fast_rows
from kvferry.models.residual.tensors import Tensors
from kvferry.policy.candidates import Floats
from kvferry.policy.correction import QUANTILES


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Layers have their bias as a last column, and but for the last a row that hands a constant 1 on."""

    first: F32
    second: F32
    heads: F32
    fast_heads: F32
    scale: F32

    @classmethod
    def of(cls, tensors: Tensors, targets: tuple[str, ...]) -> "Network":
        """Of verified tensors."""
        heads = np.column_stack((tensors["heads.weight"], tensors["heads.bias"]))
        fast, scale = fast_rows(targets), tensors["scale"][:, np.newaxis]
        medians = heads[:: len(QUANTILES)] * scale
        return cls(_layer(tensors, "first"), _layer(tensors, "second"), heads, medians[fast], scale)

    def medians(self, features: Floats) -> F32:
        return self.fast_heads @ self._hidden(features)

    def quantiles(self, features: Floats) -> F32:
        out = self.heads @ self._hidden(features)
        found = out.reshape(-1, len(QUANTILES), features.shape[1])
        rises = found[:, 1:]
        rises += np.sqrt(rises * rises + np.float32(4.0))
        rises *= np.float32(0.5)
        found *= self.scale[:, np.newaxis]
        return found.cumsum(axis=1, dtype=np.float32)

    def _hidden(self, features: Floats) -> F32:
        count, plans = features.shape
        x = np.empty((count + 1, plans), np.float32)
        x[:count] = features
        x[count] = 1.0
        for layer in (self.first, self.second):
            x = layer @ x
            np.maximum(x, np.float32(0.0), out=x)
        return x


def _layer(tensors: Tensors, name: str) -> F32:
    whole = np.column_stack((tensors[f"{name}.weight"], tensors[f"{name}.bias"]))
    constant = np.zeros((1, whole.shape[1]), np.float32)
    constant[0, -1] = 1.0
    return np.concatenate((whole, constant))
