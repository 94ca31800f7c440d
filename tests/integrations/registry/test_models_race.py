"""Two shells promote at once: of each race one wins, and the audit misses nothing."""

import asyncio
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.registry.audit import AuditEntry
from kvferry.integrations.registry.store import Registry

TIMES = 50
# Both wait for the same moment, so that they meet again and again.
SHELL = """
import contextlib, io, json, sys, time
from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run
url, who, *versions = sys.argv[1:]
told = []
print("ready", flush=True)
sys.stdin.readline()
for turn in range(int(versions.pop(0))):
    version = versions[turn % 2]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(app, ["models", "promote", version, "--redis", url, "--who", who, "--json"])
    told.append([code, version, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""


async def test_of_two_that_promote_at_once_one_wins(
    valkey: EmbeddedValkey, registry: Registry, artifact: Any, tmp_path: Path
) -> None:
    models = [artifact(seed) for seed in range(4)]
    for made in models:
        await registry.add(made, "setup")
    script = tmp_path / "shell.py"
    script.write_text(SHELL)
    names = [made.version for made in models]
    shells = {
        who: start(script, valkey.url, who, str(TIMES), *own)
        for who, own in (("ann", names[:2]), ("bob", names[2:]))
    }
    ends = await asyncio.gather(*(asyncio.to_thread(shell.communicate, "go\n") for shell in shells.values()))
    told = {who: [tuple(one) for one in json.loads(out)] for who, (out, _) in zip(shells, ends, strict=True)}
    won = {who: [one for one in told[who] if one[0] == 0] for who in told}
    lost = [one for who in told for one in told[who] if one[0] != 0]
    entries = [entry for entry in await registry.audit() if entry.command != "add"]

    assert len(told["ann"]) == len(told["bob"]) == TIMES
    for code, _, out, err in lost:
        assert (code, out) == (1, "")
        assert err.count("\n") == 1
        # who lost has been overtaken, or finds its version live already
        assert "changed the roles meanwhile" in err or "is live already" in err
    overtaken = [one for one in lost if "meanwhile" in one[3]]
    assert overtaken, "they never met"
    assert all(("ann (promote)" in one[3]) or ("bob (promote)" in one[3]) for one in overtaken)

    assert [entry.epoch for entry in entries] == list(range(1, len(entries) + 1))
    for who, done in won.items():
        assert [json.loads(one[2])["roles"]["epoch"] for one in done] == [
            entry.epoch for entry in entries if entry.who == who
        ]
    follow(entries)
    roles = await registry.roles()
    assert (roles.epoch, roles.plain()) == (len(entries), entries[-1].after)


def start(script: Path, *arguments: str) -> subprocess.Popen[str]:
    """A shell that is ready, and waits for a line."""
    shell = subprocess.Popen(
        [sys.executable, str(script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert shell.stdout is not None
    assert shell.stdout.readline() == "ready\n"
    return shell


def follow(entries: list[AuditEntry]) -> None:
    """Each change begins where the one before ended."""
    for before, after in pairwise(entries):
        assert after.before == before.after
