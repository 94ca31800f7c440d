"""sglang-router's many-valued flags, for a parser that knows one value per flag."""

import sys
from typing import Any

from typer.core import TyperCommand

from kvferry.integrations.cli.errors import UsageError

MANY = frozenset(("--worker-urls", "--prefill"))
# sglang-router's flags for what kvferry does in its own way or not at all, so that a launch command may
# keep them; how many values each takes (None: any number). Flags that change what is served, such as
# --service-discovery, are not among them: ignoring those would surprise.
IGNORED: dict[str, int | None] = {
    **dict.fromkeys(("--prefill-policy", "--decode-policy", "--prometheus-host", "--log-dir"), 1),
    **dict.fromkeys(("--worker-startup-timeout-secs", "--worker-startup-check-interval"), 1),
    **dict.fromkeys(("--cache-threshold", "--balance-abs-threshold", "--balance-rel-threshold"), 1),
    **dict.fromkeys(("--eviction-interval", "--eviction-interval-secs", "--max-tree-size"), 1),
    **dict.fromkeys(("--max-concurrent-requests", "--queue-size", "--queue-timeout-secs"), 1),
    **dict.fromkeys(("--retry-max-retries", "--retry-initial-backoff-ms", "--retry-max-backoff-ms"), 1),
    **dict.fromkeys(("--retry-backoff-multiplier", "--retry-jitter-factor"), 1),
    **dict.fromkeys(("--cb-failure-threshold", "--cb-success-threshold", "--cb-timeout-duration-secs"), 1),
    **dict.fromkeys(("--cb-window-duration-secs", "--health-failure-threshold"), 1),
    **dict.fromkeys(("--health-success-threshold", "--health-check-timeout-secs"), 1),
    **dict.fromkeys(("--health-check-interval-secs", "--health-check-endpoint"), 1),
    **dict.fromkeys(("--model-path", "--tokenizer-path"), 1),
    **dict.fromkeys(("--disable-retries", "--disable-circuit-breaker", "--dp-aware"), 0),
    **dict.fromkeys(("--request-id-headers", "--cors-allowed-origins"), None),
}


def folded(args: list[str]) -> list[str]:
    """`--worker-urls A B` becomes `--worker-urls A --worker-urls B`, `--prefill URL PORT` becomes
    `--prefill URL@PORT` (PORT may be left out, or none)."""
    result: list[str] = []
    ignored: list[str] = []
    place = 0
    while place < len(args):
        flag = args[place]
        place += 1
        if flag in IGNORED:
            ignored.append(flag)
            count = IGNORED[flag]
            end = len(args) if count is None else place + count
            while place < min(end, len(args)) and not args[place].startswith("--"):
                place += 1
            continue
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
    if ignored:
        print(f"kvferry: ignored, as kvferry has ways of its own: {', '.join(ignored)}", file=sys.stderr)
    return result


class RouterCommand(TyperCommand):
    """A command that takes its arguments as sglang-router does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, folded(args))
