"""What a departure may be waiting for outside of it: layers that are being computed, a free slot."""

import threading
from collections.abc import Callable

__all__ = ["LayerGate", "Watched"]


class Watched:
    """Tells those who wait that something changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` from now on, in the thread that changes something."""
        with self._lock:
            self._watchers.append(changed)

    def unwatch(self, changed: Callable[[], None]) -> None:
        with self._lock:
            self._watchers.remove(changed)

    def _tell(self) -> None:
        with self._lock:
            watchers = tuple(self._watchers)
        for changed in watchers:
            changed()


class LayerGate(Watched):
    """How many layers of a sequence's KV are computed; several departures may wait for the same one."""

    def __init__(self) -> None:
        super().__init__()
        self._layers = 0
        self._told: list[tuple[int, Callable[[], None] | None]] = []

    @property
    def layers(self) -> int:
        """Layers 0 to `layers` - 1 are computed, or queued where `settle` can wait for them."""
        return self._layers

    def beyond(self, layers: int) -> int | None:
        """`layers` of this gate where it is more than that, None until it is."""
        return self._layers if self._layers > layers else None

    def computed(self, layers: int, ready: Callable[[], None] | None = None) -> None:
        """The first `layers` layers are in the pools of every rank here; fewer than before changes nothing.

        `ready` blocks until they really are, where they are only queued: `torch.cuda.Event.synchronize` of
        an event recorded after them. Every departure calls it, in a thread of its own.
        """
        with self._lock:
            if layers <= self._layers:
                return
            self._layers = layers
            self._told.append((layers, ready))
        self._tell()

    def settle(self, layers: int) -> None:
        """Block until the first `layers` layers are in memory; they were told to be computed."""
        with self._lock:
            told = tuple(self._told)
        for upto, ready in told:
            if ready is not None:
                ready()
            if upto >= layers:
                return
