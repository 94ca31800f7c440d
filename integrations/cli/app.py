"""The `kvferry` command: each subcommand registers itself from a module of its own."""

import sys

import typer

from kvferry.integrations.cli import breakeven, demo, local, logs, serve, size
from kvferry.integrations.cli.errors import run

app = typer.Typer(
    name="kvferry",
    help="Decide, per request, whether to move a KV cache: a scheduler for SGLang prefill/decode clusters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _module in (serve, local, demo, size, breakeven, logs):
    _module.register(app)


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage."""
    sys.exit(run(app))


if __name__ == "__main__":
    main()
