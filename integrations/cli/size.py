"""`kvferry size`: how large a prompt's KV cache is, and how many bytes a move of it carries."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.cli.units import human_bytes
from kvferry.models.catalogue import find_shape
from kvferry.policy.kvshape import KVShape, element_bytes, padded_tokens

HELP = """Size a prompt's KV cache, and the bytes a split would move.

MODEL is a Hugging Face id, its short name, or the path of a config.json or of its folder.

Example: kvferry size Qwen3-32B --tokens 8192 --tp 4
"""


def register(app: typer.Typer) -> None:
    app.command("size", help=HELP)(size)


def size(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Id, short name or path of a config.json.")],
    tokens: Annotated[int, typer.Option(help="Prompt tokens.", metavar="T")],
    tp: Annotated[
        int, typer.Option(help="Attention tensor parallel ranks: heads replicate beyond the KV heads.")
    ] = 1,
    dtype: Annotated[str, typer.Option(help="KV cache dtype: bfloat16, fp8_e4m3, ...")] = "bfloat16",
    page_size: Annotated[int, typer.Option(help="Tokens per KV page.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    for name, value, least in (("--tokens", tokens, 0), ("--tp", tp, 1), ("--page-size", page_size, 1)):
        if value < least:
            raise UsageError(f"{name} must be at least {least}, got {value}")
    try:
        element_bytes(dtype)
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        shape = find_shape(model)
    except ValueError as error:
        raise CommandError(str(error)) from None
    figures = sizes(shape, tokens, tp, dtype, page_size)
    if as_json:
        print(json.dumps(figures))
    else:
        _show(figures, shape)


def sizes(shape: KVShape, tokens: int, tp: int, dtype: str, page_size: int) -> dict[str, str | int]:
    """What `--json` prints. `bytes` are stored once; `moved_bytes` count what `tp` ranks replicate."""
    return {
        "model": shape.name,
        "attention": shape.attention,
        "dtype": dtype,
        "tp": tp,
        "page_size": page_size,
        "bytes_per_token": shape.bytes_per_token(dtype),
        "window_bytes": shape.window_bytes(tokens, dtype, page_size=page_size),
        "fixed_bytes": shape.fixed_bytes,
        "tokens": tokens,
        "bytes": shape.kv_bytes(tokens, dtype, page_size=page_size),
        "moved_bytes": shape.moved_bytes(tokens, 0, dtype, tp, page_size),
        "pages": padded_tokens(tokens, page_size) // page_size,
    }


def _show(figures: dict[str, str | int], shape: KVShape) -> None:
    table = Table(title=f"{figures['model']}: {figures['attention']}", title_justify="left")
    table.add_column(f"{figures['tokens']:,} tokens, {figures['dtype']}, TP {figures['tp']}")
    table.add_column("", justify="right")
    table.add_column("bytes", justify="right")
    rows = {
        "per token, layers that grow": "bytes_per_token",
        f"window layers (last {shape.window_tokens:,} tokens)": "window_bytes",
        "fixed state": "fixed_bytes",
        "stored once": "bytes",
        "moved by a split": "moved_bytes",
    }
    for label, key in rows.items():
        count = int(figures[key])
        if count or key not in ("window_bytes", "fixed_bytes"):
            table.add_row(label, human_bytes(count), f"{count:,}")
    table.add_row(f"pages of {figures['page_size']:,}", "", f"{figures['pages']:,}")
    Console().print(table)
