"""`kvferry evaluate`: are predictions right, are their spreads kept, and is a model better than what runs?"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvferry.integrations.cli.decision_rows import AsJson, Namespace, Sources, read
from kvferry.integrations.cli.errors import CommandError, UsageError
from kvferry.integrations.learning.evaluation import Evaluation, TooFewError
from kvferry.integrations.learning.evaluation import evaluate as judged
from kvferry.integrations.learning.model_source import ModelError, load_model
from kvferry.integrations.learning.plot import check_plot, draw
from kvferry.integrations.learning.tables import coverage_table, errors_table, tally_lines
from kvferry.integrations.log.source import is_store
from kvferry.models.residual.artifact import Artifact

HELP = """Judge predictions by what then happened, term by term.

With --model those that this model would have made, of requests that came after its training; beside them
the live version's, the structured models', and three baselines that need no model.

Example: kvferry evaluate --from decisions.jsonl --model ./model --plot model.png
"""


def register(app: typer.Typer) -> None:
    app.command("evaluate", help=HELP)(evaluate)


def evaluate(
    source: Sources = None,
    model: Annotated[
        str | None, typer.Option(metavar="DIR|VERSION", help="A trained model. Default: the live version.")
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The store that has VERSION. Default: the first one of --from."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a plot: a .png, .svg or .pdf.")
    ] = None,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    if plot is not None:
        check_plot(plot)
    stores = [each for each in source or () if is_store(each)]
    artifact = _model(model, redis or next(iter(stores), None), namespace) if model else None
    rows, tally = read(source, namespace, predictions=True)
    try:
        found = judged(rows, artifact)
    except TooFewError as error:
        why = tally.left_out()
        raise CommandError(f"{error}; left out: {why}" if why else str(error)) from None
    if plot is not None:
        draw(found, plot)
    if as_json:
        print(json.dumps({**found.told(), "records": tally.told()}, allow_nan=False))
        return
    for line in tally_lines(tally):
        print(line)
    _show(found)
    if plot is not None:
        print(f"plot written to {plot}")


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


def _model(name: str, url: str | None, namespace: str) -> Artifact:
    try:
        return load_model(name, url, namespace)
    except ModelError as error:
        raise (UsageError if error.usage else CommandError)(str(error)) from None
