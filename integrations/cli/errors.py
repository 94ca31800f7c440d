"""How a command fails: one line on stderr, exit code 1 (failed) or 2 (usage), never a traceback."""

import sys

import click
import typer
from typer.main import get_command


class CommandError(Exception):
    """A command failed; the message says what was wrong, with what value, and what to do."""


class UsageError(CommandError):
    """The command was called wrongly (exit code 2)."""


def run(app: typer.Typer, args: list[str] | None = None) -> int:
    """Run `app` on `args` (default: sys.argv) and return its exit code."""
    try:
        result = get_command(app).main(args=args, standalone_mode=False)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "kvferry"
        return _fail(f"{error.format_message()} (see '{where} --help')", 2)
    except click.ClickException as error:
        return _fail(error.format_message(), 1)
    except UsageError as error:
        return _fail(str(error), 2)
    except CommandError as error:
        return _fail(str(error), 1)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"kvferry: {' '.join(message.split())}", file=sys.stderr)
    return code
