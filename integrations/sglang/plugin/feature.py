"""What the plugin can do inside a worker: a feature is a set of hooks that stand or fall together."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from kvferry.integrations.sglang.plugin.settings import WorkerSettings

Kind = Literal["before", "after", "around"]


@dataclass(frozen=True, slots=True)
class Hook:
    """`function` around one of SGLang's: `target` is its dotted path.

    before(*args, **kwargs) -> None; after(result, *args, **kwargs) -> new result or None to keep it;
    around(original, *args, **kwargs) -> result, calling `original` at most once; on a coroutine function it
    is one itself and awaits `original`. Coroutine functions take no `after`; generators only take `before`.
    """

    target: str
    kind: Kind
    function: Callable[..., Any]


class Feature(ABC):
    """One thing the plugin adds. Built in every process of the worker, started in the schedulers.

    `name` is its section in worker.toml. `relies_on`: functions of SGLang that are not hooked but that the
    hooks call or mirror; their sources are pinned as the hooked ones are. `instance`: this scheduler's id in
    /server_info, known from `start` on.
    """

    name: ClassVar[str]
    relies_on: ClassVar[tuple[str, ...]] = ()
    pinned: ClassVar[bool] = True  # False: any version of what it hooks will do, because it only looks

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.instance = ""

    @property
    @abstractmethod
    def enabled(self) -> bool:
        """The switch."""

    @abstractmethod
    def hooks(self) -> Sequence[Hook]:
        """All that must be in place, or none is."""

    def missing(self) -> str | None:
        """What else this environment lacks (a library, a setting); None when nothing."""
        return None

    def start(self, scheduler: Any) -> str | None:
        """The scheduler is built: begin, or say why this worker's configuration is refused."""
        return None

    def failed(self, why: str) -> None:  # noqa: B027 - most features have nothing to undo
        """The feature was turned off while serving: let go of what it holds. Called once."""

    def describe(self) -> dict[str, Any]:
        """For /server_info: plain data, of this moment. Only called while the feature is on."""
        return {}
