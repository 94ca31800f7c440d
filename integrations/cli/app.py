"""The `kvferry` command: each subcommand registers itself from a module of its own."""

import sys
from importlib import metadata
from typing import Annotated

import typer

from kvferry.integrations.cli import (
    breakeven,
    demo,
    evaluate,
    local,
    logs,
    models,
    probe,
    serve,
    simulate,
    size,
    train,
    worker,
    worker_sim,
)
from kvferry.integrations.cli.errors import run

app = typer.Typer(
    name="kvferry",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich would cut long flag names and eat [brackets]
    epilog="Example: kvferry serve --worker-urls http://10.0.0.1:30000 http://10.0.0.2:30000",
)
for _module in (
    serve,
    local,
    demo,
    worker,
    worker_sim,
    size,
    breakeven,
    probe,
    simulate,
    logs,
    train,
    evaluate,
    models,
):
    _module.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(metadata.version("kvferry"))
        raise typer.Exit


@app.callback()
def _top(
    _: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Decide, per request, whether to move a KV cache: a scheduler for SGLang prefill/decode clusters."""


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage."""
    sys.exit(run(app))


if __name__ == "__main__":
    main()
