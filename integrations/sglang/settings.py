"""What `kvferry serve` can be told, by flag or by environment (KVFERRY_<NAME>)."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from kvferry.integrations.sglang.poller import Target
from kvferry.policy.exploration import MAX_SHARE

MIB = 1 << 20


class Settings(BaseSettings):
    """Defaults work without any configuration but the workers' URLs."""

    model_config = SettingsConfigDict(env_prefix="KVFERRY_", extra="ignore", arbitrary_types_allowed=True)

    targets: tuple[Target, ...] = ()
    host: str = "127.0.0.1"
    port: int = Field(default=30000, ge=0, le=65535)
    policy: str = "kvferry"
    explore: float = Field(default=0.02, ge=0, le=MAX_SHARE)
    safe_share: float = Field(default=0.01, ge=0, le=0.5)
    api_key: SecretStr | None = None
    redis: SecretStr | None = None
    config: Path | None = None
    path_classes: dict[str, str] = {}
    shutdown_grace_period_secs: float = Field(default=10.0, ge=0)
    request_timeout_secs: float = Field(default=1800.0, gt=0)
    max_payload_size: int = Field(default=4 * MIB, gt=0)
    max_attempts: int = Field(default=3, ge=1, le=10)
    tenant_header: str = Field(default="x-kvferry-tenant", pattern=r"^[A-Za-z0-9_-]*$")
    slo_ttft_s: float = Field(default=2.0, gt=0)
    slo_itl_s: float = Field(default=0.05, gt=0)
    poll_interval_s: float = Field(default=0.25, gt=0)
    log_file: Path | None = None
    no_log_file: bool = False
    prometheus_port: int | None = Field(default=None, ge=0, le=65535)
    log_level: str = "info"
    name: str = ""
