"""`kvferry serve`: the router. It takes sglang-router's flags, so that only the first word changes."""

import asyncio
import logging
import signal
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
import uvloop
from pydantic import SecretStr, ValidationError
from pydantic_settings import SettingsError
from rich.console import Console
from rich.logging import RichHandler

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.cli.router_flags import RouterCommand
from kvferry.integrations.redis.url import StoreError
from kvferry.integrations.sglang.poller import Target
from kvferry.integrations.sglang.serving import running
from kvferry.integrations.sglang.settings import Settings
from kvferry.integrations.state import log_path
from kvferry.models.toml_file import ConfigError
from kvferry.policy.base import make
from kvferry.policy.worker import Role

# Placement policies of sglang-router: they choose a worker, not whether to split.
ELSEWHERE = frozenset(
    ("cache_aware", "round_robin", "random", "power_of_two", "consistent_hashing", "bucket", "manual")
)
URLS = typer.Option(metavar="URL...", help="Workers of any role; what they are is asked of them.")
PREFILL = typer.Option(metavar="URL [PORT]", help="A prefill worker, and its bootstrap port. Repeatable.")


def register(app: typer.Typer) -> None:
    """Add `kvferry serve` to `app`."""
    app.command(
        cls=RouterCommand,
        epilog="Example: kvferry serve --worker-urls http://10.0.0.1:30000 http://10.0.0.2:30000",
    )(serve)


def serve(
    worker_urls: Annotated[list[str] | None, URLS] = None,
    prefill: Annotated[list[str] | None, PREFILL] = None,
    decode: Annotated[list[str] | None, typer.Option(metavar="URL", help="A decode worker.")] = None,
    pd_disaggregation: Annotated[
        bool, typer.Option("--pd-disaggregation", help="Accepted; roles are asked of workers.")
    ] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on [default: 127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [default: 30000].")] = None,
    policy: Annotated[
        str | None, typer.Option(help="kvferry, or a baseline such as coin(0.5) [default: kvferry].")
    ] = None,
    explore: Annotated[
        float | None,
        typer.Option(help="Share of requests that try another plan, where it costs little [default: 0.02]."),
    ] = None,
    safe_share: Annotated[
        float | None,
        typer.Option(
            help="Share that the safe rule decides while a model is live or canary [default: 0.01]."
        ),
    ] = None,
    redis: Annotated[
        str | None, typer.Option(help="Redis or Valkey URL; an embedded Valkey without it.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Key that clients must send; also used towards the workers.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML with [[path]], [[rule]], [[model]], [[speed]] tables.")
    ] = None,
    path_class: Annotated[
        list[str] | None,
        typer.Option(metavar="TRANSPORT=CLASS", help="What a transport's path is. Repeatable."),
    ] = None,
    request_timeout_secs: Annotated[
        float | None, typer.Option(help="Longest wait for a first byte [default: 1800].")
    ] = None,
    shutdown_grace_period_secs: Annotated[
        float | None, typer.Option(help="How long a stop waits for answers [default: 10].")
    ] = None,
    max_payload_size: Annotated[
        int | None, typer.Option(help="Largest request body, bytes [default: 4194304].")
    ] = None,
    tenant_header: Annotated[
        str | None,
        typer.Option(
            help="Header that names a request's tenant; a hash is kept [default: x-kvferry-tenant]."
        ),
    ] = None,
    slo_ttft_s: Annotated[float | None, typer.Option(help="TTFT objective, s [default: 2].")] = None,
    slo_itl_s: Annotated[float | None, typer.Option(help="ITL objective, s [default: 0.05].")] = None,
    poll_interval_s: Annotated[
        float | None, typer.Option(help="How often loads are read, s [default: 0.25].")
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option(help="Request log [default: decisions.jsonl in the state folder].")
    ] = None,
    no_log_file: Annotated[bool, typer.Option("--no-log-file", help="Log to the store only.")] = False,
    prometheus_port: Annotated[
        int | None, typer.Option(help="Serve /metrics on this port too (it is on --port anyway).")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning, error.")] = None,
    name: Annotated[
        str | None, typer.Option(help="This router's name among those that share the store.")
    ] = None,
) -> None:
    """Route requests to SGLang workers: each is split or colocated, executed, logged and explained."""
    targets = (
        *(Target(_url(url)) for url in worker_urls or ()),
        *(_prefill(text) for text in prefill or ()),
        *(Target(_url(url), Role.DECODE) for url in decode or ()),
    )
    if not targets:
        raise UsageError("no workers: give --worker-urls URL..., or --prefill URL PORT and --decode URL")
    urls = [target.url for target in targets]
    if twice := sorted({url for url in urls if urls.count(url) > 1}):
        raise UsageError(f"given more than once: {', '.join(twice)}")
    console = Console(stderr=True)
    if policy in ELSEWHERE:
        console.print(f"kvferry: policy {policy!r} places within a mode; using 'kvferry', which decides both")
        policy = None
    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "policy": policy,
        "explore": explore,
        "safe_share": safe_share,
        "redis": SecretStr(redis) if redis else None,
        "api_key": SecretStr(api_key) if api_key else None,
        "config": config,
        "path_classes": dict(_pair(text) for text in path_class) if path_class else None,
        "request_timeout_secs": request_timeout_secs,
        "shutdown_grace_period_secs": shutdown_grace_period_secs,
        "max_payload_size": max_payload_size,
        "tenant_header": tenant_header,
        "slo_ttft_s": slo_ttft_s,
        "slo_itl_s": slo_itl_s,
        "poll_interval_s": poll_interval_s,
        "log_file": log_file,
        "no_log_file": no_log_file or None,
        "prometheus_port": prometheus_port,
        "log_level": log_level,
        "name": name,
    }
    try:
        settings = Settings(
            targets=targets, **{key: value for key, value in given.items() if value is not None}
        )
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-")
        raise UsageError(f"{flag}: {first['msg']} (given: {first.get('input')})") from error
    except SettingsError as error:
        raise UsageError(f"environment: {error}") from error
    try:
        make(settings.policy, explore=settings.explore)
    except ValueError as error:
        raise UsageError(f"--policy: {error}") from error
    _log_to(console, settings.log_level)
    try:
        uvloop.run(_serve(settings, console))
    except (StoreError, ConfigError, ValueError, OSError) as error:
        raise CommandError(str(error)) from error


async def _serve(settings: Settings, console: Console) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings) as (ferry, url):
        console.print(
            f"kvferry {ferry.name} on {url}, policy {ferry.policy.name}, "
            f"workers given: {len(settings.targets)}, "
            f"log: {'store only' if settings.no_log_file else settings.log_file or log_path()}",
            highlight=False,
            soft_wrap=True,
        )
        await stop.wait()
        console.print("Stopping.")


def _log_to(console: Console, level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise UsageError(f"--log-level: {level!r} is none of debug, info, warning, error")
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False, log_time_format="%H:%M:%S")
        logging.basicConfig(level=number, format="%(message)s", handlers=[handler], force=True)
    else:  # one line a message, however long, for whatever collects them
        logging.basicConfig(level=number, format="%(asctime)s %(levelname)s %(message)s", force=True)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text if "//" in text else f"http://{text}")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port beyond 65535, a broken IPv6 address
        usable = False
    if not usable or text.isdigit():
        raise UsageError(f"{text!r} is not a worker's URL: give http://host:port")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"the URL of {parts.hostname} has credentials in it: use --api-key, logs name URLs")
    if parts.path not in ("", "/") or parts.query:
        raise UsageError(f"{text!r} has a path: workers are asked at http://host:port")
    return f"{parts.scheme}://{parts.netloc}"


def _prefill(text: str) -> Target:
    url, _, port = text.rpartition("@") if "@" in text else (text, "", "")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"--prefill {url} {port}: the bootstrap port must be a number up to 65535, or none")
    return Target(_url(url), Role.PREFILL, int(port) if port else None)


def _pair(text: str) -> tuple[str, str]:
    transport, equals, path = text.partition("=")
    if not equals or not transport or not path:
        raise UsageError(f"--path-class {text!r}: give TRANSPORT=CLASS, such as mooncake=roce400_gdr_per_nic")
    return transport, path
