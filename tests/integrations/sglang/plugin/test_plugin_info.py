"""What a router reads of the plugin in /server_info, and of whatever else stands there."""

from typing import Any

import pytest

from kvferry.integrations.sglang.plugin_info import PluginInfo

TOLD = {
    "version": "1.0",
    "instance": "a1",
    "features": {"telemetry": {"on": True, "sent": 3}, "local_prefill": {"on": False, "why": "switched off"}},
}


def test_a_worker_with_the_plugin() -> None:
    info = PluginInfo.of({"internal_states": [{"kvferry": TOLD}, {"kvferry": {**TOLD, "instance": "b2"}}]})
    assert info.version == "1.0"
    assert info.instances == ("a1", "b2")
    assert info.on("telemetry")
    assert not info.on("local_prefill")
    assert info.why_off("local_prefill") == "switched off"
    assert info.why_off("telemetry") == ""
    assert info.features["telemetry"]["sent"] == 3


def test_a_feature_that_this_plugin_has_not() -> None:
    info = PluginInfo.of({"internal_states": [{"kvferry": TOLD}]})
    assert not info.on("teleport")
    assert info.why_off("teleport") == "this plugin does not know it"


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"internal_states": None},
        {"internal_states": {}},
        {"internal_states": [None, 3, {}]},
        {"internal_states": [{"kvferry": "yes"}]},
        {"internal_states": [{"kvferry": {}}]},
    ],
)
def test_a_worker_without(info: dict[str, Any]) -> None:
    assert PluginInfo.of(info) == PluginInfo()
    assert PluginInfo.of(info).why_off("telemetry") == "no plugin in this worker"


def test_odd_features_count_as_off() -> None:
    info = PluginInfo.of({"internal_states": [{"kvferry": {"version": "1", "features": {"a": 1, "b": []}}}]})
    assert not info.on("a")
    assert not info.on("b")
    assert info.why_off("a") == "it does not say why"
    assert PluginInfo.of({"internal_states": [{"kvferry": {"version": "1", "features": 4}}]}).features == {}
