"""What each path claims to be: as it was said, or as a router would take it today."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from kvferry.integrations.cli.errors import UsageError
from kvferry.integrations.cli.probe_hosts import Agents, Host
from kvferry.integrations.transports.registry import names
from kvferry.models.link_catalogue import PathRule, class_of, load_links, load_rules
from kvferry.models.paths.probed import SOURCE
from kvferry.models.toml_file import ConfigError
from kvferry.policy.link import PathClass

FORM = "give CLASS, TRANSPORT=CLASS, SRC,DST=CLASS or SRC,DST,TRANSPORT=CLASS"


@dataclass(frozen=True, slots=True)
class Claim:
    """Each of the first three "" for any; `text` as it was given."""

    src: str
    dst: str
    transport: str
    path: str
    text: str

    @classmethod
    def parse(cls, text: str) -> "Claim":
        """UsageError for what is no claim, and for an unknown transport."""
        of, equals, path = text.rpartition("=")
        parts = [part.strip() for part in of.split(",")] if equals else []
        if not path.strip() or len(parts) > 3 or (equals and not all(parts)):
            raise UsageError(f"--claim {text!r}: {FORM}")
        if len(parts) == 2 and set(parts) <= set(names()):
            raise UsageError(
                f"--claim {text!r}: {parts[0]} and {parts[1]} are transports: a --claim for each"
            )
        src, dst, transport = ("", "", *parts) if len(parts) == 1 else (*parts, "", "", "")[:3]
        if transport and transport not in names():
            raise UsageError(
                f"--claim {text!r}: no transport {transport!r}: there are {', '.join(names())}; {FORM}"
            )
        return cls(src, dst, transport, path.strip(), text)

    @property
    def says(self) -> int:
        """How much: what says more goes first."""
        return sum(map(bool, (self.src, self.dst, self.transport)))

    def fits(self, src: Host, dst: Host, transport: str) -> bool:
        """Whether it is of that path."""
        of = not self.src or (src.called(self.src) and dst.called(self.dst))
        return of and self.transport in ("", transport)


@dataclass(frozen=True, slots=True)
class Claims:
    """`given`: what says more goes first."""

    links: Mapping[str, PathClass]
    rules: tuple[PathRule, ...]
    given: tuple[Claim, ...]

    @classmethod
    def load(cls, texts: Sequence[str], config: Path | None = None) -> "Claims":
        """ConfigError for a broken file, UsageError for a claim that is none, or of an unknown class."""
        links = load_links(config)
        given = [Claim.parse(text) for text in texts]
        for one in given:
            known_class(one.path, links, "--claim")
        # What a probe wrote is no claim: a path is held against what it was taken for before.
        rules = tuple(
            rule
            for rule in load_rules(config)
            if not (rule.path in links and links[rule.path].source.startswith(SOURCE))
        )
        return cls(links, rules, tuple(sorted(given, key=lambda one: -one.says)))

    def of(self, src: Host, dst: Host, transport: str) -> PathClass:
        """The class of a path. ConfigError where no rule fits."""
        for claim in self.given:
            if claim.fits(src, dst, transport):
                return self.links[claim.path]
        pairs, same = [(one, other) for one in src.names for other in dst.names], src.same(dst)
        for rule in self.rules:
            if any(rule.fits(transport, same, src.gpu, src.rdma, *pair) for pair in pairs):
                return class_of(rule, self.links)
        raise ConfigError(f"no [[rule]] fits {transport} from {src.names[0]} to {dst.names[0]}")

    def check(self, agents: Agents, transports: Iterable[str]) -> str | None:
        """Before anything is measured: ConfigError where a path has no class, UsageError that names the
        claims of no path; a word on those where an agent did not answer, which may be whom they are of."""
        paths = [(*pair, by) for by in transports for pair in permutations(agents.hosts.values(), 2)]
        for path in paths:
            self.of(*path)
        stray = [one.text for one in self.given if not any(one.fits(*path) for path in paths)]
        if not stray:
            return None
        word = f"--claim: no path for {', '.join(map(repr, stray))}: hosts are {agents.names}"
        word += f"; transports {', '.join(dict.fromkeys(path[2] for path in paths))}"
        if agents.silent:
            return word
        raise UsageError(word)


def known_class(name: str, links: Mapping[str, PathClass], flag: str) -> str:
    """`name`; UsageError that lists the classes where it is none."""
    if name not in links:
        raise UsageError(f"{flag}: no path class {name!r}: known are {', '.join(sorted(links))}")
    return name
