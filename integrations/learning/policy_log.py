"""What another policy would have got, by the records of several sources at once."""

from collections.abc import Callable, Iterator, Sequence

from kvferry.integrations.learning.offpolicy import PolicyResult, evaluate_policy
from kvferry.integrations.learning.target import Target
from kvferry.integrations.log.reader import ReadReport, read_log
from kvferry.integrations.log.record import DecisionRecord


def judge_policy(
    sources: Sequence[str],
    target: Target,
    *,
    seed: int,
    namespace: str,
    progress: Callable[[int], None] = lambda done: None,
) -> PolicyResult:
    """Of what acted, each request once; without sources, of this machine's log. Raises SourceError."""
    report = ReadReport()
    records = _once(sources, report, namespace)
    return evaluate_policy(records, report.clusters, target, seed=seed, progress=progress)


def _once(sources: Sequence[str], report: ReadReport, namespace: str) -> Iterator[DecisionRecord]:
    seen: set[int] = set()
    for source in sources or (None,):
        for record in read_log(source, report, namespace=namespace):
            key = hash((record.id, record.time, record.mode))
            if key not in seen:
                seen.add(key)
                yield record
