"""`kvferry breakeven`: from which prompt length on a split pays, per kind of path."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.cli.units import human_seconds
from kvferry.models.catalogue import SpeedPrior, find_shape, find_speed, load_links
from kvferry.policy.breakeven import Assumptions, BreakEven, break_even
from kvferry.policy.kvshape import KVShape, element_bytes
from kvferry.policy.link import PathClass

HELP = """Show from which prompt length on a split pays, per kind of path.

Compares the same two machines as two colocated workers and as one prefill and one decode worker,
in request-seconds: the decodes a prefill stalls against the KV that has to move.

Example: kvferry breakeven Llama-3.1-70B --hardware H100 --running-decodes 32 --png breakeven.png
"""
# Left out unless named: fitted to one whole deployment, or to one host without a GPU.
_SPECIAL = ("request_level_", "loopback_", "shared_memory_")


def register(app: typer.Typer) -> None:
    app.command("breakeven", help=HELP)(breakeven)


def breakeven(
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="Model with a prior speed.")] = "Qwen3-32B",
    hardware: Annotated[
        str | None, typer.Option(help="GPU, such as H200.", show_default="first known")
    ] = None,
    tp: Annotated[
        int | None, typer.Option(help="Tensor parallel ranks.", show_default="as the prior", min=1)
    ] = None,
    path: Annotated[
        list[str] | None, typer.Option(help="Path class; may be repeated, or 'all'.", metavar="CLASS")
    ] = None,
    output_tokens: Annotated[int, typer.Option(help="Tokens the request generates.", min=1)] = 128,
    running_decodes: Annotated[int, typer.Option(help="Decodes on each colocated worker.", min=0)] = 8,
    decode_batch: Annotated[
        int | None,
        typer.Option(help="Decodes on the decode worker.", show_default="twice those", min=0),
    ] = None,
    context_tokens: Annotated[int, typer.Option(help="Mean context of a running decode.", min=0)] = 2048,
    chunk_tokens: Annotated[int, typer.Option(help="Chunked prefill size.", min=256)] = 8192,
    dtype: Annotated[str, typer.Option(help="KV cache dtype.")] = "bfloat16",
    page_size: Annotated[int, typer.Option(help="Tokens per KV page.", min=1)] = 64,
    merged_pages: Annotated[
        int, typer.Option(help="Neighbouring pages per descriptor (NIXL: 1).", min=1)
    ] = 1,
    units: Annotated[
        int | None,
        typer.Option(help="NICs or GPU pairs a move uses.", show_default="one per rank", min=1),
    ] = None,
    in_flight: Annotated[int, typer.Option(help="Other moves on the path.", min=0)] = 0,
    prefill_wait_ms: Annotated[
        float, typer.Option(help="How much longer the prefill worker's queue is.", min=0)
    ] = 0.0,
    config: Annotated[
        Path | None, typer.Option(help="TOML with path, model or speed tables of your own.", metavar="FILE")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Write a plot.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    try:
        element_bytes(dtype)
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        shape = find_shape(model, config)
        prior = find_speed(model, hardware, tp, config)
        paths = _chosen(load_links(config), path)
    except UsageError:
        raise
    except ValueError as error:
        raise CommandError(str(error)) from None
    given = Assumptions(
        output_tokens=output_tokens,
        running_decodes=running_decodes,
        decode_batch=2 * running_decodes if decode_batch is None else decode_batch,
        context_tokens=context_tokens,
        chunk_tokens=chunk_tokens,
        dtype=dtype,
        tp=prior.tp,
        page_size=page_size,
        merged_pages=merged_pages,
        units=units or prior.tp,
        in_flight=in_flight,
        prefill_wait_s=prefill_wait_ms / 1e3,
    )
    found = [break_even(each, shape, prior.speed, given) for each in paths]
    if png:
        from kvferry.integrations.cli.breakeven_plot import draw

        draw(found, f"{shape.name} on {prior.hardware.upper()}, TP {prior.tp}", given, png)
    if as_json:
        print(json.dumps(_figures(found, shape, prior, given)))
        return
    _show(found, shape, prior, given)
    if png:
        print(f"plot written to {png}")


def _chosen(links: dict[str, PathClass], names: list[str] | None) -> list[PathClass]:
    if names and "all" not in names:
        if unknown := [name for name in names if name not in links]:
            raise UsageError(f"unknown path class {unknown[0]!r}: known are {', '.join(links)}")
        return [links[name] for name in dict.fromkeys(names)]
    return [link for link in links.values() if names or not link.name.startswith(_SPECIAL)]


def _figures(found: list[BreakEven], shape: KVShape, prior: SpeedPrior, given: Assumptions) -> dict[str, Any]:
    speed = dataclasses.asdict(prior.speed)
    return {
        "model": shape.name,
        "paths": {
            each.path.name: {
                "prompt_tokens": each.at,
                "kind": each.path.kind,
                "saved_at_break_even_s": _at(each, each.saved_s),
                "paid_at_break_even_s": _at(each, each.paid_s),
                "exposed_transfer_s": _at(each, each.exposed_s),
                "source": each.path.source,
                "confidence": each.path.confidence,
            }
            for each in found
        },
        "assumptions": {
            **dataclasses.asdict(given),
            "hardware": prior.hardware,
            "speed": {
                key: speed[key] for key in speed if key.endswith(("_s", "_token", "_token2", "_sequence"))
            },
            "speed_source": prior.source,
            "speed_errors": dict(prior.errors),
        },
    }


def _at(each: BreakEven, values: Any, tokens: int | None = None) -> float | None:
    """The value at the break-even, or at the grid's length nearest to `tokens`."""
    wanted = each.at if tokens is None else tokens
    if wanted is None:
        return None
    return float(values[int(abs(each.prompt_tokens - wanted).argmin())])


def _show(found: list[BreakEven], shape: KVShape, prior: SpeedPrior, given: Assumptions) -> None:
    console = Console()
    table = Table(
        title=f"A split pays from here on: {shape.name}, {prior.hardware.upper()} TP {prior.tp}",
        title_justify="left",
    )
    table.add_column("path class", overflow="fold")
    table.add_column("GB/s", justify="right")
    table.add_column("tokens", justify="right", style="bold")
    table.add_column("saved", justify="right")
    table.add_column("paid", justify="right")
    for each in sorted(found, key=lambda one: (one.at is None, one.at or 0, one.path.name)):
        table.add_row(
            each.path.name,
            f"{each.path.beta_bytes_per_s / 1e9:.3g}",
            "never" if each.at is None else f"{each.at:,}",
            human_seconds(_at(each, each.saved_s, 8192) or 0.0),
            human_seconds(_at(each, each.paid_s, 8192) or 0.0),
        )
    console.print(table)
    for line in explain(prior, given):
        print(line)


def explain(prior: SpeedPrior, given: Assumptions) -> list[str]:
    """What the table assumes, in lines of at most 80 columns."""
    errors = prior.errors
    pages = f"{given.merged_pages} pages a descriptor" if given.merged_pages > 1 else "pages scattered"
    lines = [
        "saved, paid: request-seconds for a prompt of 8,192 tokens.",
        "Assumed:",
        f"  two equal machines: 2 colocated workers with {given.running_decodes} decodes each,",
        f"    or 1 prefill worker and 1 decode worker with {given.decode_batch} decodes",
        f"  request: {given.output_tokens} output tokens, none of the prompt cached",
        f"  decodes: hold {given.context_tokens:,} tokens each",
        f"  queues: {given.prefill_wait_s * 1e3:g} ms longer at the prefill worker",
        f"  transfer: chunks of {given.chunk_tokens:,} tokens, sent as they are computed",
        f"    pages of {given.page_size:,} tokens, {pages}; {given.in_flight} other moves on the path",
        f"    over {given.units} NICs or GPU pairs at once, where the class is per NIC or GPU",
        "    each page is a descriptor, 10 to 100 us on some paths: there they weigh more",
        "    than bytes (--merged-pages: runs of pages as one)",
        "  waiting: the workers' hand-over (1.8 ms unless measured), one decode step",
        "  layouts: equal, no repack; the two workers have met (no first contact)",
        f"  KV: {given.dtype}; never: not up to {given.max_prompt_tokens:,} tokens",
    ]
    if errors:
        lines.append(
            f"  speed: catalogue, fit errors (median) prefill {errors.get('prefill_error_median', 0):.0%}, "
            f"decode {errors.get('decode_error_median', 0):.0%}"
        )
    return lines
