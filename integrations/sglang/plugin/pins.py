"""Writes configs/sglang_pins.toml from the SGLang installed here: to be run, and its difference read, when
the hooks were checked against a new release. `python -m kvferry.integrations.sglang.plugin.pins`"""

import sys

from kvferry.integrations.sglang.plugin.entry import Core, features
from kvferry.integrations.sglang.plugin.feature import Feature
from kvferry.integrations.sglang.plugin.probe import resolve, source_hash
from kvferry.integrations.sglang.plugin.settings import WorkerSettings
from kvferry.models.toml_file import packaged

HEAD = """\
# SGLang's functions that kvferry hooks, calls or mirrors inside a worker, with the hash of the source each
# was tested with. Written by `python -m kvferry.integrations.sglang.plugin.pins`; read its difference before you
# commit it: a changed line is a function whose hooks must be looked at again.
"""


def paths(all_features: list[Feature]) -> list[str]:
    """Every pinned path, sorted."""
    found = {path for f in all_features for path in (*(h.target for h in f.hooks()), *f.relies_on)}
    return sorted(found)


def main() -> None:
    settings = WorkerSettings.load()
    version = resolve("sglang.version.__version__")
    lines = [f'versions = ["{version}"]', "", "[sources]"]
    lines += [
        f'"{path}" = "{source_hash(path)}"' for path in paths([Core(settings, ()), *features(settings)])
    ]
    packaged("sglang_pins.toml").write_text(HEAD + "\n".join(lines) + "\n")
    print(f"{len(lines) - 3} functions of SGLang {version} pinned", file=sys.stderr)


if __name__ == "__main__":
    main()
