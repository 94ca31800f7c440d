"""docs/train.md's walk-through: its commands in their order, on real workers, with less load."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.integrations.sglang.local.command import missing_requirement
from kvferry.integrations.sglang.local.ports import free_ports
from kvferry.integrations.sglang.local.spec import WorkerSpec

ROOT = Path(__file__).parents[2]
LESS = {"--requests 600": "--requests 330", "--requests 60 ": "--requests 24 ", "--rate 1.5": "--rate 3"}
TIMEOUT_S = 900
MARK = "=== step "


def steps() -> list[tuple[str, str]]:
    """(title, commands) of every step that the page has."""
    page = (ROOT / "docs" / "train.md").read_text()
    (text,) = re.findall(r"^## Walk-through.*?\n(.*?)^## ", page, re.M | re.S)
    found = re.findall(r"^\*\*\d+\. (.*?)\.\*\*.*?^```bash\n(.*?)^```", text, re.M | re.S)
    assert len(found) == len(re.findall(r"^\*\*\d+\. ", text, re.M))
    return found


def script() -> str:
    """All of it, at a port that is free, each step's output behind its number."""
    (port,) = free_ports(1)
    parts = ["set -eo pipefail"]
    for number, (_, commands) in enumerate(steps()):
        for long, short in {**LESS, "30000": str(port), "benchmarks/": f"{ROOT}/benchmarks/"}.items():
            commands = commands.replace(long, short)
        parts += [f"echo '{MARK}{number}'", commands]
    return "\n".join(parts)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each step printed, by its title."""
    if missing := missing_requirement([WorkerSpec("prefill", "mooncake"), WorkerSpec("decode", "mooncake")]):
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("walk-through")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "KVFERRY_STATE_DIR": str(folder / "state"), "COLUMNS": "100"}
    with (folder / "shown.txt").open("w+") as file:
        shell = subprocess.Popen(
            ["bash", "-c", script()],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(TIMEOUT_S)
        finally:
            _end(shell)
        file.seek(0)
        text = file.read()
    assert code == 0, text[-3000:]
    parts = re.split(rf"^{MARK}\d+\n", text, flags=re.M)[1:]
    return {title: part for (title, _), part in zip(steps(), parts, strict=True)}


def _end(shell: subprocess.Popen[bytes]) -> None:
    """The shell and what it left in the background; workers end with the command that started them."""
    try:
        os.killpg(shell.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    shell.wait(30)


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_every_step_shows_what_the_page_says(shown: dict[str, str]) -> None:
    assert '"role": "prefill"' in shown["Workers"]
    assert "answered: 330 200" in shown["Serve and log"]

    before, after = shown["One decision, before"], shown["One decision, after"]
    assert "split:" in before or "colocated:" in before
    trained = re.search(r"(m-[0-9a-f]{12}) \((?:network|forest|structured)\)", shown["Train"])
    assert trained, shown["Train"]
    version = trained.group(1)
    assert version not in before
    assert version in after

    assert re.search(r"^ttft\s+\d+\s", shown["Evaluate"], re.M)
    assert "below the best baseline" in shown["Evaluate"] or "ABOVE the best baseline" in shown["Evaluate"]
    assert "length_threshold(1000)" in shown["Evaluate"]
    assert "answered: 24 200" in shown["Shadow"]
    for step, role in (("Shadow", "shadow"), ("Canary", "canary")):
        assert re.search(rf"{version}.*{role}|{role}.*{version}", shown[step]), shown[step]
    assert version in shown["Promote"]
    last = shown["Watch, and take it back"]
    for change in ("shadow", "canary", "promote", "rollback"):
        assert change in last, last
