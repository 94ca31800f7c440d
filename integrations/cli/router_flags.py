"""sglang-router's many-valued flags, for a parser that knows one value per flag."""

from typing import Any

from typer.core import TyperCommand

from kvferry.integrations.cli.errors import UsageError

MANY = frozenset(("--worker-urls", "--prefill"))


def folded(args: list[str]) -> list[str]:
    """`--worker-urls A B` becomes `--worker-urls A --worker-urls B`, `--prefill URL PORT` becomes
    `--prefill URL@PORT` (PORT may be left out, or none)."""
    result: list[str] = []
    place = 0
    while place < len(args):
        flag = args[place]
        place += 1
        if flag not in MANY:
            result.append(flag)
            continue
        values: list[str] = []
        while place < len(args) and not args[place].startswith("--"):
            values.append(args[place])
            place += 1
        if flag == "--prefill" and len(values) > 2:
            raise UsageError(f"--prefill {' '.join(values)}: give one URL and its bootstrap port each time")
        if flag == "--prefill" and len(values) == 2:
            values = [values[0] if values[1].lower() == "none" else "@".join(values)]
        if not values:
            result.append(flag)
        for value in values:
            result += [flag, value]
    return result


class RouterCommand(TyperCommand):
    """A command that takes its arguments as sglang-router does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, folded(args))
