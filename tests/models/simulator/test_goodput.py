"""The scan for the goodput, on made-up attainments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.simulator.goodput import Point, ScanRule, scan

RULE = ScanRule(start_rps=1.0, step=1.08, leap=9, patience=3, stop_rps=200.0)


def cliff(limit_rps: float, fair_limit_rps: float | None = None):  # type: ignore[no-untyped-def]
    """Meets everything up to a rate and is given up beyond it."""
    asked: list[float] = []

    def measure(rate_rps: float) -> Point:
        asked.append(rate_rps)
        if rate_rps > limit_rps:
            return Point(rate_rps, None, None)
        fair = 0.7 if fair_limit_rps is not None and rate_rps > fair_limit_rps else 0.95
        return Point(rate_rps, 0.95, fair)

    return measure, asked


@given(st.floats(1.0, 150.0))
def test_the_last_passing_rate_of_the_grid(limit_rps: float) -> None:
    measure, asked = cliff(limit_rps)
    found = scan(measure, RULE)
    assert found.goodput_rps <= limit_rps < found.goodput_rps * RULE.step * (1 + 1e-9)
    assert found.fair_goodput_rps == found.goodput_rps
    assert len(asked) == len(set(asked)) == len(found.points)
    assert [point.rate_rps for point in found.points] == sorted(asked)


@given(st.floats(1.0, 40.0), st.floats(41.0, 150.0))
def test_class_fair_goodput_is_found_as_finely(fair_rps: float, limit_rps: float) -> None:
    found = scan(cliff(limit_rps, fair_rps)[0], RULE)
    assert found.goodput_rps <= limit_rps < found.goodput_rps * RULE.step * (1 + 1e-9)
    assert found.fair_goodput_rps <= fair_rps < found.fair_goodput_rps * RULE.step * (1 + 1e-9)


def test_one_bad_rate_below_a_good_one_does_not_count() -> None:
    """Bistable: the pool is stuck at 1.08^21 and nowhere else below 1.08^25."""

    def measure(rate_rps: float) -> Point:
        stuck = rate_rps == RULE.rate_rps(21) or rate_rps > RULE.rate_rps(25) * 1.001
        return Point(rate_rps, 0.5 if stuck else 1.0, 0.5 if stuck else 1.0)

    found = scan(measure, RULE)
    assert found.goodput_rps == RULE.rate_rps(25)
    assert any(point.rate_rps == RULE.rate_rps(21) and not point.passes for point in found.points)


def test_rates_only_rise_within_a_climb_and_stop_after_patience() -> None:
    measure, asked = cliff(10.0)
    scan(measure, RULE)
    falls = [place for place in range(1, len(asked)) if asked[place] < asked[place - 1]]
    assert all(asked[place - 1] > 10.0 for place in falls)  # only a failure sends it back
    assert len(falls) <= 2
    highest = max(rate for rate in asked if rate <= 10.0)
    above = sorted(rate for rate in asked if rate > 10.0)
    assert above[: RULE.patience] == pytest.approx(
        [highest * RULE.step**n for n in range(1, RULE.patience + 1)]
    )
    assert len(above) <= RULE.patience + 2


def test_nothing_passes() -> None:
    found = scan(cliff(0.0)[0], RULE)
    assert found.goodput_rps == found.fair_goodput_rps == 0.0
    assert len(found.points) == RULE.patience


def test_everything_passes_up_to_the_last_rate() -> None:
    found = scan(cliff(1e9)[0], RULE)
    assert found.goodput_rps == RULE.rate_rps(RULE.places - 1) <= RULE.stop_rps
    assert found.goodput_rps * RULE.step > RULE.stop_rps


def test_exactly_at_the_limits_passes() -> None:
    assert Point(1.0, 0.9, 0.8).passes_fairly
    assert not Point(1.0, 0.8999, 0.9).passes
    assert not Point(1.0, 0.95, 0.7999).passes_fairly
    assert not Point(1.0, None, None).passes_fairly


@pytest.mark.parametrize(
    "wrong", [{"start_rps": 0.0}, {"start_rps": 9.0, "stop_rps": 8.0}, {"step": 1.0}, {"patience": 0}]
)
def test_a_rule_without_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"scan|step|patience"):
        ScanRule(**wrong)  # type: ignore[arg-type]
