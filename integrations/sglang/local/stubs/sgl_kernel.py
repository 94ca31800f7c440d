"""CPU stand-in for sgl_kernel, whose wheel is CUDA only: every kernel exists and refuses to run."""

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.0.0+cpu"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU")

    missing.__name__ = name
    return missing
