"""An import-only stand-in for a package that needs a GPU: importing it works, running it does nothing.

SGLang imports `triton` and `torchvision` at module level even on a CPU, where no code path calls them.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


class _Placeholder:
    """Base of every class that a mock invents: it takes any arguments and can be subclassed."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass


class MockModule(ModuleType):
    """A module whose every attribute exists.

    Capitalised names are empty classes, all others are modules again, which can also be called: as a
    decorator, with or without arguments, they hand the function back unchanged.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__package__ = name
        self.__file__ = __file__
        self.__spec__ = importlib.machinery.ModuleSpec(name, _MockLoader(), is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in sys.modules:
            return sys.modules[full]
        value: object = (
            type(name, (_Placeholder,), {"__module__": self.__name__})
            if name[0].isupper()
            else MockModule(full)
        )
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return _unchanged

    def __getitem__(self, index: object) -> "MockModule":
        return self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[object]:
        return iter(())


def _unchanged(function: Callable[..., Any] | None = None, *args: object, **kwargs: object) -> Any:
    return function


class _MockLoader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return MockModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _MockFinder(importlib.abc.MetaPathFinder):
    def __init__(self, root: str) -> None:
        self._prefix = root + "."

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(self._prefix):
            return None
        return importlib.machinery.ModuleSpec(name, _MockLoader(), is_package=True)


def mock_package(root: str, **attributes: object) -> ModuleType:
    """Replace the module `root`, which is being imported, by a mock; its submodules become mocks too.

    `attributes` are the few names that must be real. Raises KeyError when `root` is not being imported.
    """
    real = sys.modules[root]
    mock = MockModule(root)
    mock.__spec__, mock.__loader__ = real.__spec__, real.__loader__
    mock.__file__ = real.__file__ or __file__
    for name, value in attributes.items():
        setattr(mock, name, value)
    sys.meta_path.insert(0, _MockFinder(root))
    sys.modules[root] = mock
    return mock
