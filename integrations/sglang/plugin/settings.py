"""What the worker's plugin is told: configs/worker.toml, a file over it, the environment over both."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvferry.models.toml_file import ConfigError, packaged, read_toml

CONFIG_ENV = "KVFERRY_WORKER_CONFIG"
REDIS_ENV = "KVFERRY_REDIS"
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_SWITCHES = {"0": False, "1": True, "false": False, "true": True, "off": False, "on": True}


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every section has a switch."""

    enabled: bool


class TelemetrySettings(_Section, frozen=True):
    load_interval_s: Seconds
    queue_records: Count
    stream_records: Count


class DualTransportSettings(_Section, frozen=True):
    port_offset: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class LocalPrefillSettings(_Section, frozen=True):
    itl_target_s: Seconds
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    min_chunk_tokens: Count
    max_chunk_tokens: Count
    max_queue: Count

    def __post_init__(self) -> None:
        if self.min_chunk_tokens > self.max_chunk_tokens:
            raise ValueError("min_chunk_tokens is above max_chunk_tokens")


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`redis`: URL of the store that takes telemetry, or None."""

    telemetry: TelemetrySettings
    dual_transport: DualTransportSettings
    local_prefill: LocalPrefillSettings
    redis: str | None = None

    @classmethod
    def load(cls, env: Mapping[str, str] = os.environ) -> "WorkerSettings":
        """Raises ConfigError, in one line naming file or variable, for anything that is not understood."""
        merged: dict[str, dict[str, Any]] = {}
        given = env.get(CONFIG_ENV)
        for file in (packaged("worker.toml"), *([Path(given)] if given else [])):
            for section, values in read_toml(file).items():
                if not isinstance(values, dict):
                    raise ConfigError(f"{file}: {section} is no table")
                merged[section] = {**merged.get(section, {}), **values}
        for section in merged:
            name = f"KVFERRY_{section.upper()}"
            value = env.get(name, "").strip().lower()
            if value and value not in _SWITCHES:
                raise ConfigError(f"{name}={env[name]}: give 0 or 1")
            if value:
                merged[section]["enabled"] = _SWITCHES[value]
        try:
            settings = msgspec.convert(merged, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{given or 'worker.toml'}: {error}") from error
        return msgspec.structs.replace(settings, redis=env.get(REDIS_ENV) or None)
