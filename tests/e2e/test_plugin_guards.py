"""Real workers whose SGLang, or whose plugin, was tampered with: they serve as stock SGLang and say why."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.command import STUBS, missing_requirement
from kvferry.integrations.sglang.local.spec import WorkerOptions, WorkerSpec
from kvferry.integrations.sglang.local.worker import LocalWorker
from kvferry.integrations.sglang.plugin_info import PluginInfo

pytestmark = pytest.mark.timeout(600)  # the first test waits for three workers

LENGTHS = (16, 300, 2000)
CHANGED = "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.create_sender"
RENAMED = "sglang.srt.managers.scheduler.Scheduler._create_generation_req"
FAILURES = 40  # before a feature is off: enough for every hook to have raised

# An SGLang plugin. It acts when it is imported, which SGLang does with all plugins before it calls the first.
SABOTAGE = """
import os
import sys

def load():
    pass

def change_a_source():
    from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue
    stock = PrefillBootstrapQueue.create_sender
    def create_sender(self, *args, **kwargs):
        return stock(self, *args, **kwargs)
    PrefillBootstrapQueue.create_sender = create_sender

def rename_a_method():
    from sglang.srt.managers.scheduler import Scheduler
    Scheduler._make_generation_req = Scheduler._create_generation_req
    del Scheduler._create_generation_req
    def __getattr__(self, name):
        if name == "_create_generation_req":  # for what else of SGLang calls it
            return self._make_generation_req
        raise AttributeError(name)
    Scheduler.__getattr__ = __getattr__

def break_every_hook(limit):
    from kvferry.integrations.sglang.plugin import guard
    from kvferry.integrations.sglang.plugin.feature import Hook
    from kvferry.integrations.sglang.plugin.telemetry.feature import Telemetry
    guard.FAILURES = limit
    whole = Telemetry.hooks
    def fail(*args, **kwargs):
        raise RuntimeError("sabotage")
    def fail_late(original, *args, **kwargs):
        original(*args, **kwargs)
        raise RuntimeError("sabotage")
    def hooks(self):
        return [Hook(h.target, h.kind, fail_late if h.kind == "around" else fail) for h in whole(self)]
    Telemetry.hooks = hooks

if os.environ["SABOTAGE"] == "version":
    import sglang.version
    sglang.version.__version__ = "0.5.99"
elif "sglang.srt.managers.scheduler" in sys.modules:
    change_a_source()
    rename_a_method()
    break_every_hook(int(os.environ["SABOTAGE"]))
"""


@pytest.fixture(scope="module")
def saboteur(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with an installed plugin in it."""
    folder = tmp_path_factory.mktemp("saboteur")
    (folder / "kvferry_saboteur.py").write_text(SABOTAGE)
    info = folder / "kvferry_saboteur-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvferry-saboteur\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nsaboteur = kvferry_saboteur:load\n")
    return folder


def options(folder: Path, **env: str) -> WorkerOptions:
    path = os.pathsep.join(map(str, (STUBS, folder)))
    switches = {"KVFERRY_TELEMETRY": "1", "KVFERRY_DUAL_TRANSPORT": "1", "KVFERRY_LOCAL_PREFILL": "1"}
    return WorkerOptions(env=tuple({"PYTHONPATH": path, **switches, **env}.items()))


@pytest.fixture(scope="module")
def expected(saboteur: Path, prompt_ids: Any) -> dict[int, list[int]]:
    """What a worker without any of this answers, by length of the prompt."""
    if missing := missing_requirement([WorkerSpec("decode", "mooncake")]):
        pytest.skip(missing)

    async def ask(worker: LocalWorker) -> dict[int, list[int]]:
        found = {}
        async with aiohttp.ClientSession() as session:
            for length in LENGTHS:
                sampling = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
                body = {"input_ids": prompt_ids(length), "sampling_params": sampling}
                async with session.post(worker.url + "/generate", json=body) as answer:
                    found[length] = (await answer.json())["output_ids"]
        return found

    with LocalCluster(
        [WorkerSpec("colocated")], WorkerOptions(env=(("SGLANG_PLUGINS", "kvferry_cpu"),))
    ) as cluster:
        (worker,) = cluster.workers
        assert plugin(worker) == PluginInfo(), "SGLANG_PLUGINS leaves it out"
        return asyncio.run(ask(worker))


@pytest.fixture
def pair(saboteur: Path, expected: Any, store_url: str) -> Iterator[LocalCluster]:
    specs = [WorkerSpec("prefill", "mooncake"), WorkerSpec("decode", "mooncake")]
    with LocalCluster(specs, options(saboteur, SABOTAGE=str(FAILURES), KVFERRY_REDIS=store_url)) as cluster:
        yield cluster


@pytest.fixture
def stranger(saboteur: Path, expected: Any, store_url: str) -> Iterator[LocalWorker]:
    """A worker of another version of SGLang."""
    given = options(saboteur, SABOTAGE="version", KVFERRY_REDIS=store_url)
    with LocalCluster([WorkerSpec("colocated")], given) as cluster:
        yield cluster.workers[0]


def plugin(worker: LocalWorker) -> PluginInfo:
    return PluginInfo.of(worker.server_info())


def lines(worker: LocalWorker, words: str) -> list[str]:
    return [line for line in worker.log_path.read_text().splitlines() if words in line]


async def test_a_tampered_pair_serves_as_stock(
    pair: LocalCluster, expected: dict[int, list[int]], direct: Any, prompt_ids: Any
) -> None:
    prefill, decode = pair.workers
    for worker in pair.workers:
        told = plugin(worker)
        assert told.why_off("dual_transport").startswith(f"the source of {CHANGED} has changed (")
        assert f"{RENAMED} is not there (" in told.why_off("local_prefill")
        (line,) = lines(worker, "kvferry worker plugin")
        assert told.why_off("dual_transport") in line
    for turn in range(4):
        for length in LENGTHS:
            answer = await direct.split(prefill, decode, prompt_ids(length), stream=turn % 2 == 1)
            assert answer == expected[length]
    at_once = [direct.split(prefill, decode, prompt_ids(length)) for length in LENGTHS * 3]
    assert await asyncio.gather(*at_once) == [expected[length] for length in LENGTHS] * 3
    for worker in pair.workers:
        assert f"{FAILURES} hooks failed, the last on sglang." in plugin(worker).why_off("telemetry")
        assert len(lines(worker, "RuntimeError: sabotage")) == FAILURES
        assert len(lines(worker, "telemetry is off until this worker restarts")) == 1
        assert not lines(worker, "Scheduler hit an exception")


async def test_another_version_of_sglang_stays_stock(
    stranger: LocalWorker, expected: dict[int, list[int]], direct: Any, prompt_ids: Any
) -> None:
    told = plugin(stranger)
    for feature in ("telemetry", "dual_transport", "local_prefill"):
        assert not told.on(feature)
        assert told.why_off(feature).startswith("SGLang 0.5.99 was not tested, only ")
    for length in LENGTHS:
        assert await direct.colocated(stranger, prompt_ids(length)) == expected[length]
    assert len(lines(stranger, "kvferry worker plugin")) == 1
