"""A workload of a comparison: by name or path, or mixed of several, at any rate."""

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kvferry.models.toml_file import ConfigError, UnknownNameError, entries, read_toml
from kvferry.models.workload.base import Workload
from kvferry.models.workload.merge import merge
from kvferry.models.workload.named import BUILT_IN
from kvferry.models.workload.reader import form_of, read
from kvferry.models.workload.scale import at_rate
from kvferry.models.workload.servegen import LENGTHS, RATES
from kvferry.models.workload.trace_file import TraceFile

CHECKED_S = 60.0  # of a workload that is drawn anew: enough to see that it can be


@dataclass(frozen=True, slots=True)
class Source:
    """`parts`: names or paths with weights. `start_share` and `end_share` cut a stretch of time out of each
    trace. Traces are compressed or stretched to a rate; what is generated or sampled (built-in names,
    scenarios, ServeGen) is drawn anew at that rate, from the seed. `duration_s`: how long it is simulated,
    whatever is said of others."""

    name: str
    parts: tuple[tuple[str, float], ...]
    start_share: float = 0.0
    end_share: float = 1.0
    duration_s: float | None = None

    def offered(self, rate_rps: float | None, duration_s: float | None, seed: int) -> Workload:
        """The requests; None: the workload's own rate (of a mix: that of its first part) or duration (of a
        mix: until the first part ends). ValueError says what is wrong with a file."""
        if len(self.parts) == 1:
            return self._part(self.parts[0][0], rate_rps, duration_s, seed)
        whole = sum(weight for _, weight in self.parts)
        if rate_rps is None:
            path, weight = self.parts[0]
            rate_rps = self._part(path, None, duration_s, seed).rate_rps * whole / weight
        rates = [rate_rps * weight / whole for _, weight in self.parts]
        if duration_s is None:
            own = [self._part(path, None, None, seed) for path, _ in self.parts]
            duration_s = min(len(part) / rate for part, rate in zip(own, rates, strict=True))
        return merge(
            self.name,
            [
                self._part(path, rate, duration_s, seed)
                for (path, _), rate in zip(self.parts, rates, strict=True)
            ],
        )

    def check(self) -> None:
        """ConfigError when a part cannot be read, or nothing of it is left."""
        for path, _ in self.parts:
            try:
                empty = not len(self._part(path, None, CHECKED_S if drawn(path) else None, 0))
            except ValueError as error:
                a_name = not Path(path).suffix and not Path(path).exists()
                raise (UnknownNameError if a_name else ConfigError)(str(error)) from None
            if empty:
                raise ConfigError(
                    f"{path} has no request from {self.start_share:g} to {self.end_share:g} of it"
                )
            if drawn(path) and (self.start_share, self.end_share) != (0.0, 1.0):
                raise ConfigError(f"{path} is drawn anew for every run: it has no start_share and end_share")

    def digest(self) -> str:
        """Equal for equal contents, wherever the files lie."""
        found = hashlib.sha256()
        for path, weight in self.parts:
            known = BUILT_IN.get(path)
            contents = [repr(known).encode()] if known else [file.read_bytes() for file in _files(path)]
            for content in contents:
                found.update(repr((weight, len(content))).encode() + content)
        return found.hexdigest()[:24]

    def _part(self, path: str, rate_rps: float | None, duration_s: float | None, seed: int) -> Workload:
        if drawn(path):
            return read(path, seed=seed, duration_s=duration_s, rate_rps=rate_rps)
        trace = _trace(path, seed, self.start_share, self.end_share)
        if rate_rps is not None:
            return at_rate(trace, rate_rps, duration_s)
        return trace if duration_s is None else trace.between(0.0, duration_s)


def _files(path: str) -> list[Path]:
    """The file and those that are read with it: the other one of ServeGen's two, the parts of a mix."""
    file = Path(path)
    beside = [Path(path.replace(*pair)) for pair in ((RATES, LENGTHS), (LENGTHS, RATES))]
    if file.suffix == ".toml":
        parts = entries(read_toml(file), "part", file)
        beside = [found for part in parts for found in _files(str(file.parent / str(part.get("source"))))]
    return [file, *(other for other in beside if other != file and other.is_file())]


@lru_cache(maxsize=256)
def drawn(path: str) -> bool:
    """Whether a workload is drawn from the seed, and no list of requests."""
    if path in BUILT_IN or path.endswith(".toml"):
        return True
    return Path(path).is_file() and form_of(TraceFile(Path(path))) == "servegen"


@lru_cache(maxsize=8)
def _trace(path: str, seed: int, start_share: float, end_share: float) -> Workload:
    whole = read(path, seed=seed)
    if (start_share, end_share) == (0.0, 1.0):
        return whole
    end_s = end_share * whole.duration_s if end_share < 1 else math.inf
    return whole.between(start_share * whole.duration_s, end_s)
