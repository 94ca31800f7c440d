"""`kvferry worker`: what the plugin can do in the SGLang of this environment."""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.sglang.local.command import STUBS
from kvferry.integrations.sglang.plugin.check import failing

CHECK = "kvferry.integrations.sglang.plugin.check"
TIMEOUT_S = 300.0

HELP = "Prepare an SGLang worker for kvferry."
CHECK_HELP = """Tell which of the plugin's features would work in the SGLang of this environment, and why not.

Run it with the Python and the environment variables that the worker is started with. Ends with 0 when all
that is switched on would work. What only a worker's own flags rule out is told by its log and /server_info.

Example: KVFERRY_REDIS=redis://10.0.0.9 KVFERRY_DUAL_TRANSPORT=1 kvferry worker check
"""


def register(app: typer.Typer) -> None:
    commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
    commands.command("check", help=CHECK_HELP)(check)
    app.add_typer(commands, name="worker")


def check(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    if importlib.util.find_spec("sglang") is None:
        raise CommandError(
            f"SGLang is not installed in {sys.prefix}: run this with the Python that runs the worker"
        )
    stubs = importlib.util.find_spec("triton") is None
    with Console(stderr=True).status("Importing SGLang"):
        told = {**_report(stubs), "stubs": stubs}
    if as_json:
        print(json.dumps(told))
    else:
        _show(told)
    if told["wrong"]:
        raise CommandError(f"nothing of the plugin works here: {told['wrong']}")
    if names := failing(told):
        raise CommandError(f"switched on, but would not work: {', '.join(names)}")


def _report(stubs: bool) -> dict[str, Any]:
    """Of a process of its own, which imports SGLang; `stubs`: as the CPU workers of `kvferry local` do."""
    env = dict(os.environ)
    if stubs:
        env["PYTHONPATH"] = os.pathsep.join([str(STUBS), *filter(None, [env.get("PYTHONPATH")])])
        env |= {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, "-m", CHECK]
    try:
        ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CommandError(f"importing SGLang took more than {TIMEOUT_S:.0f} s") from None
    lines = ended.stdout.splitlines()
    if not lines:
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CommandError(f"{' '.join(words[1:])} ended with {ended.returncode}: {last}")
    told: dict[str, Any] = json.loads(lines[-1])
    return told


def _show(told: dict[str, Any]) -> None:
    console = Console()
    if told["stubs"]:
        console.print("triton is missing: checked with the stand-ins of `kvferry local`", highlight=False)
    if not told["features"]:
        return
    table = Table(title=f"SGLang {told['sglang']}, kvferry {told['kvferry']}", title_justify="left")
    table.add_column("feature", no_wrap=True)
    table.add_column("switch", no_wrap=True)
    table.add_column("works", no_wrap=True)
    table.add_column("why not", overflow="fold")
    for name, one in told["features"].items():
        table.add_row(name, "on" if one["enabled"] else "off", "yes" if one["works"] else "no", one["why"])
    console.print(table)
