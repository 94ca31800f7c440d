"""What was read, and how good predictions are, in at most 80 columns."""

from collections.abc import Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvferry.integrations.cli.units import human_seconds
from kvferry.integrations.learning.evaluation import Evaluation
from kvferry.integrations.learning.tally import Tally
from kvferry.models.training.report import Score
from kvferry.policy.correction import TARGETS

REASONS = {
    "shadow": "shadow decisions, which did not act",
    "no_outcome": "without an outcome",
    "failed": "failed",
    "cancelled": "cancelled",
    "rejected": "rejected",
    "rescued": "rescued: another plan answered than the predicted one",
    "no_features": "of a kvferry that logged no features",
    "other_feature_set": "with other features than this kvferry's",
    "features_not_finite": "with features that are no numbers",
    "never": "predicted to take for ever",
    "ttft_missing": "without a TTFT",
    "clocks": "with times that no clock can have told",
    "duplicate": "read twice",
    "thinned": "left out evenly: more than memory should hold",
}
DOUBTED = {
    "negative_stage": "stages not used: some took less than no time",
    "stages_longer_than_ttft": "stages not used: together longer than the TTFT",
    "itl_of_a_burst": "ITL not used: all tokens came at once",
}


def tally_lines(tally: Tally) -> Iterator[str]:
    """One line for what was kept, one for each reason why something was not."""
    yield f"read {tally.read:,} records, {tally.kept:,} to learn from"
    for counts, words in ((tally.dropped, REASONS), (tally.doubted, DOUBTED)):
        for reason, count in counts.items():
            if count:
                yield f"  {count:>9,}  {words.get(reason, reason)}"
    if tally.bad:
        yield f"  {tally.bad:>9,}  lines that are no record, the first at {tally.first_bad}"


def errors_table(found: Evaluation) -> Table:
    """Median errors: of the model, the live version, the structured models and the baselines."""
    columns = {"live": found.live, "struc-\ntured": found.structured}
    if found.model is not None:
        columns = {"model": found.model, **columns}
    for name, word in (("moving_average", "moving\naverage"), ("linear_fit", "one\nline")):
        columns[word] = found.baselines[name]
    columns["cata-\nlogue"] = found.baselines["catalogue"]
    columns = {word: each for word, each in columns.items() if any(score.n for score in each.values())}
    table = Table(
        title="median error", title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for header in ("", "requests", *columns):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for name in measured(found):
        table.add_row(
            name, f"{found.judged[name].n:,}", *(percent(each[name].mdape) for each in columns.values())
        )
    return table


def coverage_table(scores: Mapping[str, Score], title: str) -> Table:
    """Errors, and how often the truth was at or under each predicted quantile."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for header in ("", "requests", "median error", "mean error", "under p50", "p90", "p99"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for name in (name for name in TARGETS if name in scores and scores[name].n):
        each = scores[name]
        shares = (each.coverage_p50, each.coverage_p90, each.coverage_p99)
        off_s = "-" if each.mae_s is None else human_seconds(each.mae_s)
        table.add_row(name, f"{each.n:,}", percent(each.mdape), off_s, *(percent(share) for share in shares))
    return table


def measured(found: Evaluation) -> list[str]:
    return [name for name in TARGETS if found.judged[name].n]


def percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.1%}" if share < 9.995 else f"{share:.0f}x"
