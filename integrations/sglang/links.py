"""The link between two workers, before they moved anything: a path class by hand, by a probe, or by rules."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvferry.models.link_catalogue import PathRule, class_of, first_rule, load_links, load_rules
from kvferry.models.paths.probed import Probed, by_hosts, link_of
from kvferry.models.toml_file import ConfigError
from kvferry.policy.link import Link, PathClass
from kvferry.policy.worker import Worker


@dataclass(slots=True, eq=False)
class Links:
    """Path classes and rules; `given` names a class per transport, over the rules.

    What was written by hand goes first, then what was measured, then what is assumed: `given`, a rule that
    names hosts, `probed`, any other rule. `probed`: by source host, destination host and transport.
    """

    classes: Mapping[str, PathClass]
    rules: tuple[PathRule, ...]
    given: Mapping[str, str]
    probed: Mapping[tuple[str, str, str], Probed] = field(default_factory=dict)

    @classmethod
    def load(cls, config: Path | None = None, given: Mapping[str, str] | None = None) -> "Links":
        """ConfigError when a file is broken or a given class is unknown."""
        classes, rules = load_links(config), load_rules(config)
        for name in (given or {}).values():
            if name not in classes:
                raise ConfigError(f"unknown path class {name!r}: known are {', '.join(sorted(classes))}")
        return cls(classes, rules, dict(given or {}))

    def take(self, found: Iterable[Probed]) -> None:
        """What probes say by now, in place of what they said before."""
        self.probed = by_hosts(found)

    def of(self, src: Worker, dst: Worker, transport: str) -> Link:
        """The link from `src` to `dst`. Rates per NIC or per GPU count once for every rank pair."""
        units = min(src.layout.tp, dst.layout.tp)
        return link_of(self._path(src, dst, transport), src.host, dst.host, transport, units)

    def probe_of(self, link: Link) -> Probed | None:
        """What a probe found there, whether or not the link's figures are by it."""
        return self.probed.get((link.src_host, link.dst_host, link.transport))

    def _path(self, src: Worker, dst: Worker, transport: str) -> PathClass:
        if transport in self.given:
            return self.classes[self.given[transport]]
        rule = first_rule(
            self.rules,
            transport,
            same_host=src.host == dst.host,
            gpu=src.facts.get("gpu", ""),
            rdma=bool(src.facts.get("rdma")),
            src_host=src.host,
            dst_host=dst.host,
        )
        path = class_of(rule, self.classes)
        probed = self.probed.get((src.host, dst.host, transport))
        if rule.names_hosts or probed is None:
            return path
        return probed.path_class(self.classes.get(probed.claimed_class, path))
