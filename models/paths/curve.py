"""Seconds of a move by its bytes and descriptors, in one regime or two."""

import math
from dataclasses import dataclass

import numpy as np

from kvferry.policy.candidates import Floats
from kvferry.policy.link import PathClass


@dataclass(frozen=True, slots=True)
class Curve:
    """What a move takes that has the path to itself:

        up to `split_bytes`:  alpha + bytes * s_per_byte + gamma * descriptors
        beyond:               that of `split_bytes` + jump + (bytes - split_bytes) * late_s_per_byte
                              + late_gamma * descriptors

    No coefficient is negative, so a larger move never takes less. `late_gamma_s` is what a descriptor costs
    more beyond the split. Without a split (`split_bytes` infinite) the three that are late mean nothing.
    `overlapped`: descriptors are posted while bytes are on the wire, so that the larger of what the bytes
    (with the jump) and what the descriptors take counts, not their sum.
    """

    alpha_s: float
    s_per_byte: float
    gamma_s: float
    split_bytes: float = math.inf
    jump_s: float = 0.0
    late_s_per_byte: float = 0.0
    late_gamma_s: float = 0.0
    overlapped: bool = False

    @classmethod
    def of(cls, path: PathClass, units: int = 1) -> "Curve":
        """What the catalogue says of a class; `units`: NICs or GPUs that move at once (`Link.of`)."""
        lanes = max(1, units) if path.scope in ("gpu", "nic") else 1
        per_byte = 1.0 / (path.beta_bytes_per_s * lanes)
        return cls(path.alpha_s, per_byte, path.gamma_s_per_descriptor / lanes)

    @property
    def two_regimes(self) -> bool:
        """Whether large moves go by other numbers than small ones."""
        return math.isfinite(self.split_bytes)

    @property
    def beta_bytes_per_s(self) -> float:
        """Bandwidth that lasts: of the last regime, infinite where bytes cost nothing."""
        per_byte = self.late_s_per_byte if self.two_regimes else self.s_per_byte
        return 1.0 / per_byte if per_byte > 0.0 else math.inf

    @property
    def first_beta_bytes_per_s(self) -> float:
        """Bandwidth of small moves: far above the lasting one behind a shaper that lets bursts through."""
        return 1.0 / self.s_per_byte if self.s_per_byte > 0.0 else math.inf

    @property
    def last_gamma_s(self) -> float:
        """Seconds per descriptor in the last regime."""
        return self.gamma_s + (self.late_gamma_s if self.two_regimes else 0.0)

    def predict(self, moved_bytes: float, descriptors: float = 1.0) -> float:
        """Seconds of one move."""
        return float(self.predict_all(np.array([moved_bytes]), np.array([descriptors]))[0])

    def predict_all(self, moved_bytes: Floats, descriptors: Floats) -> Floats:
        """Seconds of each move, arrays [n]."""
        bytes_s, pieces_s = self.parts(moved_bytes, descriptors)
        both = np.maximum(bytes_s, pieces_s) if self.overlapped else bytes_s + pieces_s
        return np.asarray(self.alpha_s + both, dtype=np.float64)

    def parts(self, moved_bytes: Floats, descriptors: Floats) -> tuple[Floats, Floats]:
        """Seconds that the bytes take (with the jump) and that the descriptors take, arrays [n]."""
        first = np.minimum(moved_bytes, self.split_bytes)
        bytes_s, pieces_s = first * self.s_per_byte, descriptors * self.gamma_s
        if self.two_regimes:
            late = moved_bytes > self.split_bytes
            bytes_s = bytes_s + (moved_bytes - first) * self.late_s_per_byte + late * self.jump_s
            pieces_s = pieces_s + late * descriptors * self.late_gamma_s
        return bytes_s, pieces_s
