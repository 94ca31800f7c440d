"""What each path claims to be: as it was said, or as a router would take it today."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvferry.integrations.cli.errors import UsageError
from kvferry.integrations.cli.probe_hosts import Host
from kvferry.models.link_catalogue import PathRule, class_of, load_links, load_rules
from kvferry.models.paths.probed import SOURCE
from kvferry.models.toml_file import ConfigError
from kvferry.policy.link import PathClass

FORM = "give CLASS, TRANSPORT=CLASS, SRC,DST=CLASS or SRC,DST,TRANSPORT=CLASS"


@dataclass(frozen=True, slots=True)
class Claims:
    """`given`: of (source, destination, transport), each "" for any; what says more goes first."""

    links: Mapping[str, PathClass]
    rules: tuple[PathRule, ...]
    given: tuple[tuple[tuple[str, str, str], str], ...]

    @classmethod
    def load(cls, texts: Sequence[str], config: Path | None = None) -> "Claims":
        """ConfigError for a broken file, UsageError for a claim that is none, or of an unknown class."""
        links = load_links(config)
        given = [_claim(text) for text in texts]
        for _, name in given:
            known_class(name, links, "--claim")
        # What a probe wrote is no claim: a path is held against what it was taken for before.
        rules = tuple(
            rule
            for rule in load_rules(config)
            if not (rule.path in links and links[rule.path].source.startswith(SOURCE))
        )
        given.sort(key=lambda one: -sum(map(bool, one[0])))
        return cls(links, rules, tuple(given))

    def of(self, src: Host, dst: Host, transport: str) -> PathClass:
        """The class of a path. ConfigError where no rule fits."""
        for (one, other, by), name in self.given:
            if by in ("", transport) and (not one or (one in src.names and other in dst.names)):
                return self.links[name]
        pairs, same = [(one, other) for one in src.names for other in dst.names], src.same(dst)
        for rule in self.rules:
            if any(rule.fits(transport, same, src.gpu, src.rdma, *pair) for pair in pairs):
                return class_of(rule, self.links)
        raise ConfigError(f"no [[rule]] fits {transport} from {src.names[0]} to {dst.names[0]}")


def known_class(name: str, links: Mapping[str, PathClass], flag: str) -> str:
    """`name`; UsageError that lists the classes where it is none."""
    if name not in links:
        raise UsageError(f"{flag}: no path class {name!r}: known are {', '.join(sorted(links))}")
    return name


def _claim(text: str) -> tuple[tuple[str, str, str], str]:
    of, equals, name = text.rpartition("=")
    parts = [part.strip() for part in of.split(",")] if equals else []
    if not name.strip() or len(parts) > 3 or (equals and not all(parts)):
        raise UsageError(f"--claim {text!r}: {FORM}")
    if len(parts) == 1:
        return ("", "", parts[0]), name.strip()
    src, dst, transport = (*parts, "", "", "")[:3]
    return (src, dst, transport), name.strip()
