"""`kvferry train`: from decision logs to a model that corrects the structured predictions."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kvferry.integrations.cli.decision_rows import AsJson, Namespace, Sources, read
from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.learning.evaluation import Evaluation, evaluate
from kvferry.integrations.learning.model_folder import FolderError, check_folder, write_model
from kvferry.integrations.learning.progress import progress
from kvferry.integrations.learning.tables import coverage_table, errors_table, tally_lines
from kvferry.models.residual.artifact import Artifact

HELP = """Train a model on decision logs: what requests truly cost, given what was predicted of them.

The oldest requests are learned from, later ones set the spreads, the newest are kept to judge by. The model
is a folder with two files; kvferry models promote brings it to the routers. Needs pip install
'kvferry[train]'.

Example: kvferry train --from redis://127.0.0.1:6379 --from archive/ --out ./model
"""


def register(app: typer.Typer) -> None:
    app.command("train", help=HELP)(train)


def train(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write the model; a model there is replaced.")
    ],
    source: Sources = None,
    seed: Annotated[int, typer.Option(min=0, help="The same logs and seed give the same model.")] = 0,
    namespace: Namespace = "kvferry",
    as_json: AsJson = False,
) -> None:
    out = out.expanduser()
    try:
        check_folder(out)
        rows, tally = read(source, namespace, predictions=False)
        if not as_json:
            print(*tally_lines(tally), sep="\n")
        artifact = _fitted(rows, seed, tally.left_out())
        write_model(artifact, out)
    except FolderError as error:
        raise CommandError(str(error)) from None
    found = evaluate(rows, artifact)
    if as_json:
        print(json.dumps(_told(artifact, found, out, tally.told()), allow_nan=False))
        return
    console = Console(highlight=False)
    console.print(errors_table(found))
    console.print(coverage_table(found.judged, f"of {artifact.version}"))
    print(f"judged on: {found.held_out.why}")
    for note in artifact.manifest.notes:
        console.print(note, markup=False, soft_wrap=False)
    print(f"{artifact.version} ({artifact.manifest.kind}) -> {out}")


def _fitted(rows: Any, seed: int, left_out: str) -> Artifact:
    from kvferry.models.training.fit import FitError, fit

    try:
        with progress("training") as report:
            return fit(rows, seed=seed, progress=report)
    except FitError as error:
        raise CommandError(f"{error}; left out: {left_out}" if left_out else str(error)) from None


def _told(artifact: Artifact, found: Evaluation, out: Path, records: dict[str, Any]) -> dict[str, Any]:
    manifest = artifact.manifest
    return {
        "version": artifact.version,
        "out": str(out),
        "kind": manifest.kind,
        "seed": manifest.seed,
        "window_s": [manifest.window_from_s, manifest.window_to_s],
        "split": manifest.rows,
        "records": records,
        "notes": list(manifest.notes),
        **{
            key: value
            for key, value in found.told().items()
            if key in ("terms", "structured", "baselines", "gains")
        },
    }
