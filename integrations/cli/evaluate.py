"""`kvferry evaluate`: are predictions right, are their spreads kept, and is a model better than what runs?"""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kvferry.integrations.cli.decision_rows import AsJson, Namespace, Sources, read
from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.cli.log_failures import failures
from kvferry.integrations.learning.evaluation import Evaluation, TooFewError
from kvferry.integrations.learning.evaluation import evaluate as judged
from kvferry.integrations.learning.model_source import ModelError, load_model
from kvferry.integrations.learning.offpolicy import PolicyResult
from kvferry.integrations.learning.plot import check_plot, draw
from kvferry.integrations.learning.policy_log import judge_policy
from kvferry.integrations.learning.policy_table import policy_lines, policy_table
from kvferry.integrations.learning.progress import progress
from kvferry.integrations.learning.tables import coverage_table, errors_table, tally_lines
from kvferry.integrations.learning.target import Target, target_of
from kvferry.integrations.log.source import is_store
from kvferry.models.residual.artifact import Artifact
from kvferry.models.training.rows import Rows

HELP = """Judge predictions by what then happened, term by term.

With --model those that this model would have made, of requests that came after its training; beside them
the live version's, the structured models', and three baselines that need no model. With --policy also what
that policy would have got: the share of requests in their objectives, TTFT and ITL.

Example: kvferry evaluate --from decisions.jsonl --model ./model --plot model.png
"""


def register(app: typer.Typer) -> None:
    app.command("evaluate", help=HELP)(evaluate)


def evaluate(
    source: Sources = None,
    model: Annotated[
        str | None, typer.Option(metavar="DIR|VERSION", help="A trained model. Default: the live version.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|DIR",
            help="Also estimate what this policy, or kvferry with this model, would have got.",
        ),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The store that has VERSION. Default: the first one of --from, or KVFERRY_REDIS.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a plot: a .png, .svg or .pdf.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the intervals of --policy.")] = 0,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    if plot is not None:
        check_plot(plot)
    stores = (each for each in source or () if is_store(each))
    url = redis or next(stores, None) or os.environ.get("KVFERRY_REDIS")
    with _failures():
        artifact = load_model(model, url, namespace) if model else None
        target = target_of(policy, url, namespace) if policy is not None else None
    rows, tally = read(source, namespace, predictions=True)
    found, too_few = _judged(rows, artifact)
    if found is None and (target is None or plot is not None):
        why = tally.left_out()
        raise CommandError(f"{too_few}; left out: {why}" if why else too_few)
    if found is not None and plot is not None:
        draw(found, plot)
    result = _policy(source or (), target, seed, namespace, tally.read) if target is not None else None
    if as_json:
        told = {
            **(found.told() if found is not None else {"terms": None}),
            "policy": result.told() if result is not None else None,
            "records": tally.told(),
        }
        print(json.dumps(_finite(told), allow_nan=False))
        return
    print(*tally_lines(tally), sep="\n")
    if found is None:
        print(too_few)
    else:
        _show(found)
    if result is not None:
        if not result.verdict.refused:
            Console(highlight=False).print(policy_table(result))
        print(*policy_lines(result), sep="\n")
    if plot is not None:
        print(f"plot written to {plot}")


def _judged(rows: Rows, artifact: Artifact | None) -> tuple[Evaluation | None, str]:
    try:
        return judged(rows, artifact), ""
    except TooFewError as error:
        return None, str(error)


def _policy(sources: Sequence[str], target: Target, seed: int, namespace: str, records: int) -> PolicyResult:
    with failures(), progress("deciding anew") as report:
        return judge_policy(
            sources, target, seed=seed, namespace=namespace, progress=lambda done: report(done, records)
        )


def _show(found: Evaluation) -> None:
    console = Console(highlight=False)
    console.print(errors_table(found))
    whose = "what the live version said" if found.model is None else found.version
    console.print(coverage_table(found.judged, f"of {whose}"))
    print(f"judged on: {found.held_out.why}")
    if found.inside is not None and found.inside < 1.0:
        print(f"{1.0 - found.inside:.1%} are unlike what it was trained on: structured predictions there")
    for name, gain in found.gains().items():
        word = "below" if gain["gain"] >= 0 else "ABOVE"
        print(f"{name}: {abs(gain['gain']):.0%} {word} the best baseline, {gain['baseline']}")


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise (UsageError if error.usage else CommandError)(str(error)) from None


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value
