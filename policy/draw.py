"""Random numbers from a request's own seed: the same seed draws the same, wherever it is replayed."""

_MASK = (1 << 64) - 1


def unit(seed: int, salt: int = 0) -> float:
    """A uniform number in [0, 1) for one purpose (`salt`) of one request (splitmix64)."""
    z = (seed + (salt + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def pick(seed: int, count: int, salt: int = 0) -> int:
    """A uniform index below `count`."""
    return int(unit(seed, salt) * count)
