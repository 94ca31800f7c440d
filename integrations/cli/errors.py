"""How a command fails: one line on stderr, exit code 1 (failed) or 2 (usage), never a traceback."""

import os
import sys

import typer
from typer.exceptions import TyperException
from typer.main import get_command


class CommandError(Exception):
    """A command failed; the message says what was wrong, with what value, and what to do."""

    exit_code = 1


class UsageError(CommandError):
    """The command was called wrongly."""

    exit_code = 2


def run(app: typer.Typer, args: list[str] | None = None) -> int:
    """Run `app` on `args` (default: sys.argv) and return its exit code."""
    try:
        result = get_command(app).main(args=args, standalone_mode=False)
    except TyperException as error:
        if error.format_message().startswith("Usage:"):  # called without a command
            print(error.format_message(), file=sys.stderr)
            return error.exit_code
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context and error.exit_code == 2 else ""
        return _fail(error.format_message() + hint, error.exit_code)
    except CommandError as error:
        return _fail(str(error), error.exit_code)
    except typer.Exit as leave:
        return leave.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader went away (| head): not a failure of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"kvferry: {' '.join(message.split())}", file=sys.stderr)
    return code
