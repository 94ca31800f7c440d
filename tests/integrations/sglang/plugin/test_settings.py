"""configs/worker.toml, a file over it, the environment over both; what is not understood is an error."""

from pathlib import Path

import pytest

from kvferry.integrations.sglang.plugin.settings import CONFIG_ENV, REDIS_ENV, WorkerSettings
from kvferry.models.toml_file import ConfigError


def with_file(folder: Path, text: str, **env: str) -> WorkerSettings:
    file = folder / "mine.toml"
    file.write_text(text)
    return WorkerSettings.load({CONFIG_ENV: str(file), **env})


def test_telemetry_is_on_and_what_changes_behaviour_is_off() -> None:
    settings = WorkerSettings.load({})
    assert settings.telemetry.enabled
    assert not settings.dual_transport.enabled
    assert not settings.local_prefill.enabled
    assert settings.redis is None


def test_a_file_need_only_name_what_differs(tmp_path: Path) -> None:
    settings = with_file(tmp_path, "[telemetry]\nload_interval_s = 5\n[local_prefill]\nenabled = true\n")
    packaged = WorkerSettings.load({})
    assert settings.telemetry.load_interval_s == 5
    assert settings.telemetry.queue_records == packaged.telemetry.queue_records
    assert settings.local_prefill.enabled


@pytest.mark.parametrize(("value", "on"), [("1", True), ("on", True), ("TRUE", True), ("0", False)])
def test_the_environment_wins(tmp_path: Path, value: str, on: bool) -> None:
    text = f"[dual_transport]\nenabled = {str(not on).lower()}\n"
    assert with_file(tmp_path, text, KVFERRY_DUAL_TRANSPORT=value).dual_transport.enabled is on


def test_an_empty_variable_is_no_answer(tmp_path: Path) -> None:
    env = {"KVFERRY_TELEMETRY": "", REDIS_ENV: "", CONFIG_ENV: ""}
    assert WorkerSettings.load(env) == WorkerSettings.load({})


def test_redis_comes_from_the_environment() -> None:
    assert WorkerSettings.load({REDIS_ENV: "redis://h"}).redis == "redis://h"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[telemetry]\nload_interval = 1\n", "load_interval"),
        ("[telemetri]\nenabled = true\n", "telemetri"),
        ("[telemetry]\nload_interval_s = 0\n", "load_interval_s"),
        ("[telemetry]\nqueue_records = -1\n", "queue_records"),
        ("[telemetry]\nqueue_records = 1.5\n", "queue_records"),
        ("[telemetry]\nenabled = 'yes'\n", "enabled"),
        ("[dual_transport]\nport_offset = 0\n", "port_offset"),
        ("[local_prefill]\nshare = 1.5\n", "share"),
        ("[local_prefill]\nmin_chunk_tokens = 900\nmax_chunk_tokens = 100\n", "max_chunk_tokens"),
        ("telemetry = 1\n", "telemetry"),
        ("redis = 'redis://h'\n", "redis"),
        ("[telemetry\n", "TOML"),
    ],
)
def test_what_is_not_understood_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_file(tmp_path, text)
    assert words in str(caught.value)
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        WorkerSettings.load({CONFIG_ENV: str(tmp_path / "nowhere.toml")})


def test_a_switch_that_is_none() -> None:
    with pytest.raises(ConfigError, match="KVFERRY_TELEMETRY=maybe: give 0 or 1"):
        WorkerSettings.load({"KVFERRY_TELEMETRY": "maybe"})
