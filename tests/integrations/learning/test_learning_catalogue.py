"""The catalogue's own prediction, from a decision over the log to what a model is held against."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvferry.integrations.learning.evaluation import evaluate
from kvferry.integrations.learning.sources import read_rows
from kvferry.integrations.learning.tally import Tally
from kvferry.integrations.log.codec import write_outcome, write_record
from kvferry.integrations.log.convert import joined, record_of
from kvferry.integrations.log.export import export
from kvferry.integrations.log.record import DecisionRecord, Outcome, Stages
from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.streams import Entry, Streams
from kvferry.models.training.rows import Rows
from kvferry.policy import base
from kvferry.policy.cluster import Cluster
from kvferry.policy.kvshape import KVShape
from kvferry.policy.link import Link
from kvferry.policy.request import Request
from kvferry.policy.worker import Role, Worker

COUNT = 60


def world() -> Cluster:
    """A prefill and a decode worker, whose link was learned to be far worse than the catalogue has it."""
    shape = KVShape(layers=32, kv_heads=8, head_dim=128)
    made = [
        Worker(
            id=role.value,
            url=f"http://{role.value}",
            role=role,
            model="m",
            shape=shape,
            bootstrap_port=1,
            host=role.value,
            transports=("mooncake",),
        )
        for role in (Role.PREFILL, Role.DECODE)
    ]
    found = Cluster.of(
        made, lambda src, dst, name: Link(src.host, dst.host, name, "tcp", 0.004, 1e9, 1e9, 1e-6)
    )
    factors = {"link_slowness": 1.5, "link_byte_factor": 2.0, "link_descriptor_factor": 3.0}
    learned = {name: np.array([value]) for name, value in factors.items()}
    return replace(found, state=replace(found.state, link_offset_s=np.array([0.5]), **learned))


@pytest.fixture(scope="module")
def log() -> list[DecisionRecord]:
    """Requests whose moves took what the catalogue says."""
    cluster, policy, records = world(), base.make("always_split"), []
    for n in range(COUNT):
        request = Request(f"{n}", "m", prompt_tokens=500 + 97 * n)
        decision = policy.decide(request, cluster)
        moved_s = decision.costs.catalogue_transfer_s
        assert 0.0 < 2.0 * moved_s < decision.costs.transfer_s.p50
        stages = Stages(queue_s=0.001, prefill_s=decision.costs.prefill_s.p50, transfer_s=moved_s)
        outcome = Outcome(ttft_s=0.01 + decision.costs.prefill_s.p50 + moved_s, e2e_s=1e4, stages=stages)
        record = record_of(request, decision, time_s=1.7e9 + n, router="r")
        assert record.catalogue_transfer_s == pytest.approx(moved_s, abs=1e-6)
        records.append(joined(record, outcome))
    return records


def of_store(records: list[DecisionRecord]) -> Rows:
    with asyncio.Runner() as runner:
        store = runner.run(open_store())
        try:
            entries = [
                Entry("decision", each.id, write_record(joined(each, None)))  # type: ignore[arg-type]
                for each in records
            ]
            entries += [Entry("outcome", each.id, write_outcome(each.outcome)) for each in records]  # type: ignore[arg-type]
            runner.run(Streams(store).add(entries))
            assert store.embedded is not None
            return read_rows([store.embedded.url], Tally())
        finally:
            runner.run(store.close())


@pytest.mark.parametrize("source", ["lines", "parquet", "store"])
def test_the_baseline_is_what_the_catalogue_said_when_it_was_decided(
    log: list[DecisionRecord], source: str, written: Callable[..., Path], tmp_path: Path
) -> None:
    if source == "store":
        rows = of_store(log)
    elif source == "parquet":
        pytest.importorskip("pyarrow")
        export(log, tmp_path / "log.parquet")
        rows = read_rows([str(tmp_path / "log.parquet")], Tally())
    else:
        rows = read_rows([str(written(log))], Tally())
    assert rows.catalogue_s == pytest.approx([each.catalogue_transfer_s for each in log], rel=1e-6)
    found = evaluate(rows)
    assert found.baselines["catalogue"]["transfer"].mdape == pytest.approx(0.0, abs=1e-3)
    assert found.structured["transfer"].mdape > 1.0
    # as every log was judged before: the factors and the offset stay in
    rough = evaluate(replace(rows, catalogue_s=None)).baselines["catalogue"]["transfer"].mdape
    assert rough is not None
    assert rough > 0.5


def test_rows_to_train_on_hold_nothing_of_it(log: list[DecisionRecord], written: Callable[..., Path]) -> None:
    assert read_rows([str(written(log))], Tally(), predictions=False).catalogue_s is None
