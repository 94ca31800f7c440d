"""Laws of generated workloads: rates, bursts, shared prefixes, phases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.models.workload.arrivals import Arrivals
from kvferry.models.workload.base import Workload
from kvferry.models.workload.lengths import Fixed, Lognormal, Mixture, Quantiles, Uniform
from kvferry.models.workload.named import BUILT_IN
from kvferry.models.workload.rate_curve import RateCurve
from kvferry.models.workload.reader import read
from kvferry.models.workload.scenario import Phase, Scenario, Stream, generate
from kvferry.models.workload.session import Session

FLAT = RateCurve(np.array([0.0, 2000.0]), np.array([10.0]))


def same(one: Workload, other: Workload) -> bool:
    columns = ("arrival_s", "prompt_tokens", "output_tokens", "block_ids", "block_starts", "session")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


def common(one: list[int], other: list[int]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        (Arrivals(), 1),
        (Arrivals("gamma", 0.5), 0.5),
        (Arrivals("gamma", 2.5), 2.5),
        (Arrivals("weibull", 0.5), 0.5),
        (Arrivals("weibull", 2.5), 2.5),
    ],
)
def test_arrivals_have_their_rate_and_spread(arrivals: Arrivals, cv: float) -> None:
    times_s = arrivals.times_s(FLAT, np.random.default_rng(1))
    gaps = np.diff(times_s)
    assert len(times_s) == pytest.approx(20_000, rel=0.06)
    assert gaps.min() >= 0
    assert times_s[0] >= 0
    assert times_s[-1] < 2000
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.08)


def test_on_and_off_keep_the_mean_and_leave_silences() -> None:
    times_s = Arrivals(on_s=5, off_s=15).times_s(FLAT, np.random.default_rng(1))
    assert len(times_s) == pytest.approx(20_000, rel=0.05)
    busy = np.histogram(times_s, np.arange(0, 2001))[0] > 0
    assert busy.mean() == pytest.approx(0.25, abs=0.1)


def test_a_curve_is_followed_through_silence() -> None:
    curve = RateCurve(np.array([0.0, 10, 20, 30]), np.array([100.0, 0, 300]))
    counts = np.histogram(Arrivals().times_s(curve, np.random.default_rng(1)), (0, 10, 20, 30))[0]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(1000, rel=0.15)
    assert counts[2] == pytest.approx(3000, rel=0.1)


@pytest.mark.parametrize(
    ("lengths", "mean", "low", "high"),
    [
        (Fixed(7), 7, 7, 7),
        (Uniform(10, 30), 20, 10, 30),
        (Lognormal(100, 0.5), 100 * np.exp(0.125), 0, 1e9),
        (Lognormal(100, 3, 50, 200), None, 50, 200),
        (Quantiles((0, 0.5, 1), (0, 10, 110)), 32.5, 0, 110),
        (Mixture((Fixed(1), Fixed(9)), (3, 1)), 3, 1, 9),
    ],
)
def test_lengths(lengths: Lognormal, mean: float | None, low: float, high: float) -> None:
    drawn = lengths.draw(20_000, np.random.default_rng(1))
    assert drawn.min() >= low
    assert drawn.max() <= high
    if mean is not None:
        assert drawn.mean() == pytest.approx(mean, rel=0.05)


sessions = st.builds(
    Session,
    opening=st.builds(Uniform, st.just(1), st.floats(1, 900)),
    output=st.builds(Uniform, st.just(1), st.floats(1, 300)),
    turns=st.builds(Uniform, st.just(1), st.floats(1, 9)),
    follow=st.builds(Uniform, st.just(0), st.floats(0, 200)),
    wait_s=st.builds(Uniform, st.just(0), st.floats(0, 20)),
    system_tokens=st.integers(0, 300),
    system_prompts=st.integers(1, 3),
    limit_tokens=st.integers(301, 2500),
)


@settings(max_examples=40)
@given(sessions, st.integers(0, 2**32), st.sampled_from([16, 64, 512]))
def test_prompts_share_what_was_said_before_and_nothing_else(
    session: Session, seed: int, block_tokens: int
) -> None:
    workload = session.requests(
        "s", np.linspace(0, 9, 12), np.random.default_rng(seed), block_tokens=block_tokens
    )
    assert np.all(np.diff(workload.arrival_s) >= 0)
    assert np.array_equal(np.diff(workload.block_starts), workload.prompt_tokens // block_tokens)
    assert workload.prompt_tokens.max() <= session.limit_tokens
    shared = session.system_tokens // block_tokens
    rows = [(int(workload.session[row]), workload.blocks_of(row)) for row in range(len(workload))]
    last: dict[int, int] = {}
    for row, (talk, blocks) in enumerate(rows):
        for other, before in rows[:row]:
            length = common(blocks, before)
            assert set(blocks[length:]).isdisjoint(before[length:])
            if talk == other and talk >= 0:
                assert length == min(len(blocks), len(before))
            else:
                assert length in (0, min(shared, len(blocks), len(before)))
        if talk in last and talk >= 0:
            said = workload.prompt_tokens[last[talk]] + workload.output_tokens[last[talk]]
            assert workload.prompt_tokens[row] >= said
            pause_s = workload.arrival_s[row] - workload.arrival_s[last[talk]]
            assert pause_s >= session.s_per_token * workload.output_tokens[last[talk]] - 1e-6
        last[talk] = row


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_in_workloads_are_told_by_their_seed(name: str) -> None:
    workload = read(name, seed=5)
    assert same(workload, read(name, seed=5))
    assert not same(workload, read(name, seed=6))
    assert workload.arrival_s[-1] < BUILT_IN[name].duration_s
    assert len(workload) == pytest.approx(BUILT_IN[name].rate_rps * BUILT_IN[name].duration_s, rel=0.25)


@pytest.mark.parametrize("name", ["conversation", "agentic"])
def test_conversations_are_under_way_from_the_start(name: str) -> None:
    workload = read(name, seed=1, duration_s=300, rate_rps=40)
    # Conversations that all began after time 0 would bring a quarter of the rate at first.
    assert (workload.arrival_s < 15).sum() == pytest.approx(15 * 40, rel=0.35)
    assert len(workload) == pytest.approx(12_000, rel=0.1)
    reused = 1 - len(np.unique(workload.block_ids)) / len(workload.block_ids)
    assert reused > 0.5


def test_phases_change_who_comes() -> None:
    short, long = Session(Fixed(10), output=Fixed(1)), Session(Fixed(1000), output=Fixed(1))
    scenario = Scenario(
        "s",
        (Stream("short", short, 40.0), Stream("long", long, 20.0)),
        (Phase(1, (1.0, 0.0)), Phase(3, (0.0, 1.0))),
        duration_s=100.0,
    )
    assert scenario.rate_rps == pytest.approx(25)
    workload = generate(scenario, duration_s=400.0, rate_rps=50.0)
    assert workload.prompt_tokens[workload.arrival_s < 100].tolist() == [10] * int(
        (workload.arrival_s < 100).sum()
    )
    assert workload.prompt_tokens[workload.arrival_s >= 100].min() == 1000
    assert len(workload) == pytest.approx(20_000, rel=0.05)
    assert (workload.arrival_s < 100).mean() == pytest.approx(0.4, abs=0.03)


def test_senseless_descriptions_are_refused() -> None:
    session = Session(Fixed(1), output=Fixed(1))
    for build in (
        lambda: Arrivals("gamma", 0),
        lambda: Arrivals("poisson", 2),
        lambda: Arrivals("pareto"),  # type: ignore[arg-type]
        lambda: Arrivals(on_s=3),
        lambda: Lognormal(0, 1),
        lambda: Uniform(3, 2),
        lambda: Quantiles((0, 1), (5, 3)),
        lambda: Quantiles((0, 0.5), (1, 3)),
        lambda: Mixture((), ()),
        lambda: Mixture((Fixed(1),), (0,)),
        lambda: Fixed(float("nan")),
        lambda: Session(Fixed(1), Fixed(1), system_tokens=9, limit_tokens=9),
        lambda: Stream("s", session, -1),
        lambda: Scenario("s", ()),
        lambda: Scenario("s", (Stream("s", session, 0),)),
        lambda: Scenario("s", (Stream("s", session, 1),), (Phase(1, ()),)),
        lambda: generate(BUILT_IN["steady"], duration_s=0),
        lambda: read("steady", start_s=5),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - each says what in its own words
            build()
