"""What a router logs is enough to decide again, to the last bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvferry.integrations.learning.offpolicy import collect
from kvferry.integrations.learning.target import target_of
from kvferry.integrations.log.picture import numbers_of
from kvferry.integrations.log.reader import ReadReport, read_log, read_store
from kvferry.integrations.log.replay import Replay
from kvferry.integrations.registry.arms import Model, Running
from kvferry.integrations.state import log_path
from kvferry.policy.base import Policy
from kvferry.policy.candidates import Floats
from kvferry.policy.cluster import Cluster
from kvferry.policy.correction import TARGETS, Correction
from kvferry.policy.decision import Decision
from kvferry.policy.request import Request


class Witness:
    """Decides as `policy` does, and keeps what it was given, as it was then."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.name = policy, policy.name
        self.given: dict[str, np.ndarray] = {}

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        self.given[request.id] = numbers_of(request, cluster)
        return self.policy.decide(request, cluster)


class Slower:
    """Takes everything to last twice as long."""

    version = "m-slow"

    def correct(self, features: Floats) -> Correction:
        plans = features.shape[1]
        twice, every = np.full(plans, np.log(2.0)), np.ones(plans, np.bool_)

        def quantiles(rows: Sequence[int]) -> Floats:
            found = np.full((len(TARGETS), 3, len(rows)), np.nan)
            found[:2] = np.log(2.0)
            return found

        return Correction(twice, twice, every, True, quantiles, lambda row: "")


async def test_every_logged_decision_is_made_again(
    pair: Any, route: Any, eventually: Any, store: Any
) -> None:
    workers = await pair(prefills=2, decodes=2, colocated=2)
    router = await route(*workers.all, policy="kvferry(2048,5,0.001,0.5,2)")
    ferry = router.ferry
    ferry.policy = witness = Witness(ferry.policy)
    for n in range(30):
        body = {"text": "word " * (10 + 400 * (n % 5)), "stream": True}
        await router.post(body=body)
    await eventually(lambda: ferry.sink.log_written == 30 and not ferry.sink.queued)

    report, streamed = ReadReport(), ReadReport()
    records = list(read_log(str(log_path()), report))
    assert (len(records), report.bad) == (30, 0)
    again = Replay(report.clusters)
    for record in records:
        request, cluster = again(record)
        np.testing.assert_array_equal(numbers_of(request, cluster), witness.given[record.id])
        made = witness.policy.decide(request, cluster)
        assert (made.plan.key, str(made.reason), made.explored) == (
            record.chosen.plan,
            record.reason,
            record.explored,
        )
        assert (made.propensity_mode, made.propensity_plan) == (
            record.propensity.mode,
            record.propensity.plan,
        )
    assert any(record.explored for record in records)
    assert {record.chosen.mode for record in records} == {"split", "colocated"}
    logged, left_out = collect(records, report.clusters, target_of("kvferry(2048,5,0.001,0.5,2)"))
    assert not left_out
    np.testing.assert_allclose(logged.weights, 1.0, rtol=1e-9)

    ours = {record.id for record in records}
    from_store = [record async for record in read_store(store, streamed) if record.id in ours]
    assert len(from_store) == 30
    for record in from_store:
        Replay(streamed.clusters)(record)


async def test_a_learned_model_decides_the_same_when_it_is_given_again(
    pair: Any, route: Any, eventually: Any
) -> None:
    workers = await pair(colocated=1)
    router = await route(*workers.all)
    ferry = router.ferry
    slower = Slower()
    await router.post(body={"text": "word " * 50})
    ferry.arms.safe_share = 0.0
    ferry.arms.run(Running(live=Model(slower.version, slower)))
    for n in range(6):
        await router.post(body={"text": "word " * (10 + 900 * n)})
    await eventually(lambda: ferry.sink.log_written == 7)
    report = ReadReport()
    records = [record for record in read_log(str(log_path()), report) if record.model_version == "m-slow"]
    assert len(records) >= 5
    for record in records:
        made = ferry.policy.decide(*Replay(report.clusters)(record, slower))
        assert made.plan.key == record.chosen.plan
        assert made.model_version == "m-slow"
        assert round(made.costs.ttft_s.p50, 6) == record.terms.ttft_s.p50
        plain = ferry.policy.decide(*Replay(report.clusters)(record))
        assert plain.costs.ttft_s.p50 < made.costs.ttft_s.p50
