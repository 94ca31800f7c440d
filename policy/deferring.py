"""Fields that are worked out when they are first read: most decisions are never explained."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

Work = Callable[[], Mapping[str, Any]]


class Deferring:
    """Base of frozen dataclasses with slots. A deferred slot is empty until it is read; then its work fills
    all slots that it gives, once."""

    __slots__ = ("_later",)

    def defer(self, work: Work, *names: str) -> None:
        """Leave the fields `names` to `work`, whatever they hold now. The maker's to call, before others
        see the object."""
        try:
            later: dict[str, Work] = object.__getattribute__(self, "_later")
        except AttributeError:
            later = {}
            object.__setattr__(self, "_later", later)
        for name in names:
            object.__delattr__(self, name)
            later[name] = work

    if not TYPE_CHECKING:  # type checkers would take it to have every attribute

        def __getattr__(self, name: str) -> Any:  # called where a slot is empty
            try:
                work = object.__getattribute__(self, "_later").pop(name)
            except (AttributeError, KeyError):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None
            for filled, value in work().items():
                object.__setattr__(self, filled, value)
                object.__getattribute__(self, "_later").pop(filled, None)
            return object.__getattribute__(self, name)
