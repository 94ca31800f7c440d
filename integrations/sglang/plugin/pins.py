"""Writes configs/sglang_pins.toml from the SGLang installed here: to be run, and its difference read, when
the hooks were checked against a new release. `python -m kvferry.integrations.sglang.plugin.pins`"""

import importlib
import sys
from collections.abc import Iterable

from kvferry.integrations.sglang.plugin.entry import FEATURES
from kvferry.integrations.sglang.plugin.feature import Feature
from kvferry.integrations.sglang.plugin.probe import resolve, source_hash
from kvferry.integrations.sglang.plugin.settings import WorkerSettings
from kvferry.models.toml_file import packaged

HEAD = """\
# SGLang's functions that kvferry hooks, calls or mirrors inside a worker, with the hash of the source each
# was tested with. Written by `python -m kvferry.integrations.sglang.plugin.pins`: read its difference before
# you commit it, for a changed line is a function whose hooks must be looked at again.
"""


def paths(all_features: Iterable[Feature]) -> list[str]:
    """Every pinned path, sorted."""
    found = {path for f in all_features for path in (*(h.target for h in f.hooks()), *f.relies_on)}
    return sorted(found)


def text(all_features: Iterable[Feature]) -> str:
    """The file for the SGLang installed here."""
    lines = [f'versions = ["{resolve("sglang.version.__version__")}"]', "", "[sources]"]
    lines += [f'"{path}" = "{source_hash(path)}"' for path in paths(all_features)]
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    settings = WorkerSettings.load({})
    # not entry.features: one that cannot be imported here must not lose its pins
    built = [getattr(importlib.import_module(module), name)(settings) for module, name in FEATURES.values()]
    packaged("sglang_pins.toml").write_text(text(built))
    print(f"{len(paths(built))} functions pinned", file=sys.stderr)


if __name__ == "__main__":
    main()
