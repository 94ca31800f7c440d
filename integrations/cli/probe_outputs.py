"""Where a probe leaves what it found: a file for routers, their store, a plot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.cli.probe_findings import Finding
from kvferry.integrations.cli.probe_former import tell, write
from kvferry.integrations.cli.probe_plot import draw
from kvferry.integrations.cli.probe_said import say
from kvferry.models.paths.probed import Probed
from kvferry.policy.link import PathClass


@dataclass(slots=True)
class Outputs:
    """`failed`: what could not be written of late, by what it is, and why; it is tried again with what is
    found next."""

    toml: Path | None
    plot: Path | None
    redis: str | None
    namespace: str
    links: Mapping[str, PathClass]
    failed: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.toml, self.plot, self.redis))

    async def leave(self, kept: Sequence[Probed], *, whole: bool = True, store: bool = True) -> None:
        """In the file, then in the store. Not `whole`: what the file has of other paths stays."""
        if self.toml is not None and kept:
            try:
                write(self.toml, kept, self.links, whole=whole)
                self._did("--toml")
            except CommandError as error:
                self._could_not("--toml", error)
        if self.redis is not None and store:
            try:
                await tell(self.redis, self.namespace, kept)
                self._did("--redis")
            except CommandError as error:
                self._could_not("--redis", error)

    def draw(self, found: Sequence[Finding]) -> None:
        if self.plot is None:
            return
        try:
            draw(found, self.plot)
            self._did("--plot")
        except CommandError as error:
            self._could_not("--plot", error)

    def _could_not(self, what: str, error: CommandError) -> None:
        if what not in self.failed:
            say(f"{what}: {error}")
        self.failed[what] = str(error)

    def _did(self, what: str) -> None:
        if self.failed.pop(what, None) is not None:
            say(f"{what}: written again")


def check_plot(file: Path) -> None:
    """Before anything is measured: UsageError for a format that there is not, CommandError without
    matplotlib, or without the folder."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise CommandError("a plot needs matplotlib: pip install 'kvferry[plot]'") from None
    formats = FigureCanvasAgg.get_supported_filetypes()
    if file.suffix.removeprefix(".").lower() not in formats:
        raise UsageError(f"--plot {file}: no such format: give a name that ends in .png, .svg or .pdf")
    if not file.parent.is_dir():
        raise CommandError(f"cannot write {file}: no folder {file.parent}")
    if file.is_dir():
        raise CommandError(f"cannot write {file}: it is a folder")
