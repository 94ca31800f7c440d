"""What would work in this environment, found out as a worker would: `python -m` this prints one JSON object.

For a process of its own: it imports SGLang and lets it apply the hooks of every plugin.
"""

import contextlib
import importlib
import json
import sys
from importlib.metadata import version
from typing import Any

from kvferry.integrations.sglang.plugin import entry
from kvferry.integrations.sglang.plugin.feature import Feature
from kvferry.integrations.sglang.plugin.guard import Guard
from kvferry.integrations.sglang.plugin.probe import why_not
from kvferry.integrations.sglang.plugin.settings import WorkerSettings
from kvferry.models.toml_file import ConfigError


def report() -> dict[str, Any]:
    """`wrong`: why nothing can work, else "". `features`: by name, `enabled`, `works` and `why` it does not.

    What a worker's own configuration rules out (its role, its parallelism) is not known before it starts.
    """
    told: dict[str, Any] = {"kvferry": version("kvferry"), "sglang": "", "wrong": "", "features": {}}
    try:
        settings = WorkerSettings.load()
        importlib.import_module(entry.SCHEDULER)
        told["sglang"] = str(importlib.import_module("sglang.version").__version__)
    except ConfigError as error:
        return told | {"wrong": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever the import raises, it is the answer
        return told | {"wrong": f"SGLang cannot be imported: {type(error).__name__}: {error}"}
    importlib.import_module("sglang.srt.plugins").load_plugins()
    if entry.installed is None:
        return told | {"wrong": "SGLang did not load the plugin: see SGLANG_PLUGINS, SGLANG_PLATFORM"}
    guards = {guard.feature.name: guard for guard in entry.installed.guards}
    told["features"] = {
        feature.name: _told(feature, guards[feature.name]) for feature in entry.features(settings)
    }
    return told


def _told(feature: Feature, guard: Guard) -> dict[str, Any]:
    if feature.enabled:
        why = "" if guard.on else guard.off
    else:
        why = feature.missing() or why_not((*(h.target for h in feature.hooks()), *feature.relies_on)) or ""
    return {"enabled": feature.enabled, "works": not why, "why": why}


def failing(told: dict[str, Any]) -> list[str]:
    """The features of a report that are switched on and would not work."""
    return [name for name, one in told["features"].items() if one["enabled"] and not one["works"]]


def main() -> int:
    """Print the report; 0 when all that is switched on would work."""
    with contextlib.redirect_stdout(sys.stderr):  # SGLang's imports may print
        told = report()
    print(json.dumps(told))
    return 1 if told["wrong"] or failing(told) else 0


if __name__ == "__main__":
    sys.exit(main())
