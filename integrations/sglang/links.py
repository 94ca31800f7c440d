"""The link between two workers, before anything was measured on it: a path class from the catalogue."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvferry.models.link_catalogue import PathRule, default_path_class, load_links, load_rules
from kvferry.models.toml_file import ConfigError
from kvferry.policy.link import Link, PathClass
from kvferry.policy.worker import Worker


@dataclass(frozen=True, slots=True)
class Links:
    """Path classes and rules; `given` names a class per transport, over the rules."""

    classes: Mapping[str, PathClass]
    rules: tuple[PathRule, ...]
    given: Mapping[str, str]

    @classmethod
    def load(cls, config: Path | None = None, given: Mapping[str, str] | None = None) -> "Links":
        """ConfigError when a file is broken or a given class is unknown."""
        classes, rules = load_links(config), load_rules(config)
        for name in (given or {}).values():
            if name not in classes:
                raise ConfigError(f"unknown path class {name!r}: known are {', '.join(sorted(classes))}")
        return cls(classes, rules, dict(given or {}))

    def of(self, src: Worker, dst: Worker, transport: str) -> Link:
        """The link from `src` to `dst`. Rates per NIC or per GPU count once for every rank pair."""
        if transport in self.given:
            path = self.classes[self.given[transport]]
        else:
            path = default_path_class(
                self.classes,
                self.rules,
                transport,
                same_host=src.host == dst.host,
                gpu=src.facts.get("gpu", ""),
                rdma=bool(src.facts.get("rdma")),
            )
        return Link.of(path, src.host, dst.host, transport, units=min(src.layout.tp, dst.layout.tp))
