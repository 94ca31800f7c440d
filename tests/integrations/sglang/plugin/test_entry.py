"""What the entry point does in each process of a worker, and what it tells."""

import logging
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvferry.integrations.sglang.plugin import entry
from kvferry.integrations.sglang.plugin.feature import Feature, Hook
from kvferry.integrations.sglang.plugin.settings import CONFIG_ENV
from kvferry.integrations.sglang.plugin_info import PluginInfo

INTERNAL = "sglang.srt.managers.scheduler_components.internal_state"
LOGGER = "kvferry.plugin"


class Scheduler:
    def __init__(self, name: str) -> None:
        self.name = name


@dataclass
class Answer:
    internal_state: dict[str, Any] = field(default_factory=dict)


class Controller:
    def get_internal_state(self, request: Any) -> Answer:
        return Answer({"startup_time": 1})


@dataclass
class Process:
    """A worker's process: `load` as SGLang does, then build a scheduler, then ask."""

    stock: Any
    scheduler: ModuleType
    state: ModuleType

    def load(self) -> None:
        entry.load()
        self.stock.apply()

    def start(self) -> Any:
        return self.scheduler.Scheduler("s")

    def told(self) -> PluginInfo:
        state = self.state.SchedulerInternalStateController().get_internal_state(None).internal_state
        assert state["startup_time"] == 1
        return PluginInfo.of({"internal_states": [state]})


@pytest.fixture
def process(stock: Any, monkeypatch: pytest.MonkeyPatch) -> Process:
    for name in ("KVFERRY_TELEMETRY", "KVFERRY_DUAL_TRANSPORT", "KVFERRY_LOCAL_PREFILL", CONFIG_ENV):
        monkeypatch.delenv(name, raising=False)
    scheduler, state = ModuleType(entry.SCHEDULER), ModuleType(INTERNAL)
    # fresh classes: hooks stay on what they were put on
    scheduler.__dict__["Scheduler"] = type("Scheduler", (), {"__init__": Scheduler.__init__})
    state.__dict__["SchedulerInternalStateController"] = type("C", (), dict(Controller.__dict__))
    for name, module in {
        "sglang.srt.managers": ModuleType("sglang.srt.managers"),
        "sglang.srt.managers.scheduler_components": ModuleType("sglang.srt.managers.scheduler_components"),
        entry.SCHEDULER: scheduler,
        INTERNAL: state,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["sglang.srt"].__dict__["plugins"] = sys.modules["sglang.srt.plugins"]
    sys.modules["sglang.srt"].__dict__["managers"] = sys.modules["sglang.srt.managers"]
    sys.modules["sglang"].__dict__["srt"] = sys.modules["sglang.srt"]
    parts = sys.modules["sglang.srt.managers.scheduler_components"]
    sys.modules["sglang.srt.managers"].__dict__.update(scheduler=scheduler, scheduler_components=parts)
    parts.__dict__["internal_state"] = state
    return Process(stock, scheduler, state)


Offer = Callable[..., None]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, stock: Any) -> Offer:
    """`offer(telemetry=[hook])`: the plugin's features, by name, each with these hooks."""

    def make(**hooks: list[Hook]) -> None:
        module = ModuleType("toyfeatures")
        for name, given in hooks.items():
            module.__dict__[name] = _toy_class(name, given)
        monkeypatch.setitem(sys.modules, "toyfeatures", module)
        monkeypatch.setattr(entry, "FEATURES", {name: ("toyfeatures", name) for name in hooks})
        stock.pin("free")

    return make


def _toy_class(name_: str, given: list[Hook]) -> type[Feature]:
    class Toy(Feature):
        name = name_

        @property
        def enabled(self) -> bool:
            return bool(getattr(self.settings, name_).enabled)

        def hooks(self) -> list[Hook]:
            return given

        def describe(self) -> dict[str, Any]:
            return {"instance": self.instance}

    return Toy


def negate(stock: Any) -> Hook:
    return Hook(stock.path("free"), "after", lambda result, n: -n)


def test_a_scheduler_tells_what_is_on_and_why_not(
    process: Process, stock: Any, offer: Offer, caplog: pytest.LogCaptureFixture
) -> None:
    offer(telemetry=[negate(stock)], local_prefill=[])
    process.load()
    with caplog.at_level(logging.INFO, LOGGER):
        process.start()
    (record,) = [r for r in caplog.records if r.name == LOGGER]
    assert record.levelno == logging.INFO
    assert record.message.endswith(": telemetry on; local_prefill off (switched off)")
    told = process.told()
    assert told.on("telemetry")
    assert told.why_off("local_prefill") == "switched off"
    assert told.features["telemetry"]["instance"] == told.instances[0] != ""
    assert stock.module.free(3) == -3


def test_another_version_of_sglang_says_so_and_stays_stock(
    process: Process, stock: Any, offer: Offer, caplog: pytest.LogCaptureFixture
) -> None:
    offer(telemetry=[negate(stock)], local_prefill=[])
    sys.modules["sglang.version"].__dict__["__version__"] = "10.0"
    process.load()
    process.start()
    assert process.told().why_off("telemetry") == "SGLang 10.0 was not tested, only 9.9.9"
    assert process.told().why_off("local_prefill") == "switched off"
    assert stock.module.free(3) == 3
    assert caplog.records[-1].levelno == logging.WARNING, "something switched on is off"


def test_a_feature_that_cannot_be_built_leaves_the_others(
    process: Process, stock: Any, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(telemetry=[negate(stock)], local_prefill=[])
    monkeypatch.setitem(entry.FEATURES, "local_prefill", ("nowhere", "LocalPrefill"))
    monkeypatch.setenv("KVFERRY_LOCAL_PREFILL", "1")
    process.load()
    process.start()
    assert process.told().on("telemetry")
    assert process.told().why_off("local_prefill").endswith("No module named 'nowhere'")


def test_a_configuration_that_is_not_understood_turns_all_off(
    process: Process,
    stock: Any,
    offer: Offer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    offer(telemetry=[negate(stock)], local_prefill=[])
    (tmp_path / "mine.toml").write_text("[telemetry]\nlaod_interval_s = 1\n")
    monkeypatch.setenv(CONFIG_ENV, str(tmp_path / "mine.toml"))
    process.load()
    assert process.start().name == "s"
    assert "laod_interval_s" in caplog.text
    assert "laod_interval_s" in process.told().why_off("telemetry")
    assert "laod_interval_s" in process.told().why_off("local_prefill")
    assert stock.module.free(3) == 3


def test_without_a_place_to_stand_all_is_off_and_logged(
    process: Process, stock: Any, offer: Offer, caplog: pytest.LogCaptureFixture
) -> None:
    offer(telemetry=[negate(stock)])
    del process.state.SchedulerInternalStateController.get_internal_state
    process.load()
    process.start()
    assert stock.module.free(3) == 3
    (record,) = [r for r in caplog.records if r.name == LOGGER]
    assert "get_internal_state is not there" in record.message


def test_a_logging_configuration_of_ones_own_does_not_silence_the_line(
    process: Process, stock: Any, offer: Offer, caplog: pytest.LogCaptureFixture
) -> None:
    """logging.config.dictConfig disables the loggers that are there already, and SGLang calls it late."""
    offer(telemetry=[negate(stock)])
    process.load()
    caplog.set_level(logging.INFO)
    logging.getLogger(LOGGER).disabled = True
    process.start()
    assert "telemetry on" in caplog.text


def test_telling_never_hurts(
    process: Process, stock: Any, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(telemetry=[negate(stock)])
    process.load()
    process.start()
    monkeypatch.setattr(entry.Core, "describe", lambda self: 1 / 0)
    for _ in range(5):
        assert process.told() == PluginInfo()


def test_the_detokenizer_is_left_alone(
    process: Process, stock: Any, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(telemetry=[Hook("sglang.srt.managers.tokenizer_manager.f", "before", print), negate(stock)])
    monkeypatch.delitem(sys.modules, entry.SCHEDULER)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: "the HTTP server")
    process.load()
    assert not stock.hooks.HookRegistry._hooks


@pytest.mark.parametrize("wanted", [True, False])
def test_the_http_process_is_hooked_when_a_feature_asks(
    process: Process, stock: Any, offer: Offer, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """SGLang loads plugins there before it imports its schedulers."""
    monkeypatch.setattr(entry, "FRONT", (stock.path("free"),) if wanted else ("elsewhere",))
    offer(telemetry=[negate(stock)])
    monkeypatch.delitem(sys.modules, entry.SCHEDULER)
    monkeypatch.setattr(entry, "SCHEDULER", "sglang.srt.managers.late")
    sys.modules["sglang.srt.managers"].__dict__["late"] = process.scheduler
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)
    process.load()
    assert stock.module.free(3) == (-3 if wanted else 3)
