"""CPU stand-in for triton: kernels are decorated at import and never launched."""

import importlib

from kvferry.integrations.sglang.local.mock import mock_package


class Config:
    """An autotuning configuration; SGLang reads `kwargs` when it builds its tables at import."""

    def __init__(self, kwargs: dict[str, object] | None = None, **options: object) -> None:
        self.kwargs = kwargs or {}


class constexpr:
    """A compile-time constant; module-level code reads `value` back."""

    def __init__(self, value: object = None) -> None:
        self.value = value


def cdiv(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(a // -b)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two >= n (1 for n <= 0)."""
    return 1 << (n - 1).bit_length() if n > 0 else 1


# SGLang compares the version at import; no code path uses what it promises.
mock_package("triton", __version__="3.0.0", cdiv=cdiv, Config=Config, next_power_of_2=next_power_of_2)
importlib.import_module("triton.language").__dict__["constexpr"] = constexpr
