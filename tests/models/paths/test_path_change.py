import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kvferry.models.link_catalogue import load_links
from kvferry.models.paths.change import changed, since
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import fit
from kvferry.models.paths.judge import judge


def test_a_tenfold_drop_during_a_run_changes_the_judgement(moves):
    links, before, after = load_links(), moves.line(50, 0.42, 5), moves.line(50, 4.2, 5)
    former = fit(moves.over(before, seed=1, odd=0.03))
    run = moves.over(before, seed=2, repeats=1) + moves.over(after, seed=3, repeats=3)
    at = since(former, run)
    assert at is not None
    # Moves that mostly wait say nothing of the rate: it may be seen from a round's first large one on.
    assert len(moves.cells) - 3 <= at <= len(moves.cells) * 2
    now = fit(run[at:])
    told = changed(former.curve, now.curve)
    assert told is not None
    assert told.slower == pytest.approx(10, rel=0.15)
    assert "times slower than before (0.2" in told.words
    assert judge(former.curve, "tcp_25g", links).verdict == "as tcp_25g"
    assert "a tenth of tcp_25g" in judge(now.curve, "tcp_25g", links).verdict


@settings(max_examples=8, deadline=None, derandomize=True, phases=(Phase.generate,))
@given(st.integers(0, 10**6))
def test_the_same_path_has_not_changed(moves, seed):
    former = fit(moves.over(moves.line(50, 0.42, 5), seed))
    again = moves.over(moves.line(50, 0.42, 5), seed + 1, odd=0.02)
    assert since(former, again) is None
    assert changed(former.curve, fit(again).curve) is None


def test_a_slow_start_is_a_change_too():
    told = changed(Curve(20e-6, 1e-10, 0.0), Curve(900e-6, 1e-10, 0.0))
    assert told is not None
    assert "slower" in told.words
    assert "us" in told.words


def test_a_path_that_recovers_is_said_to_be_faster():
    told = changed(Curve(20e-6, 1e-9, 0.0), Curve(20e-6, 1e-10, 0.0))
    assert told is not None
    assert told.words.startswith("10 times faster than before (10 GB/s, was 1 GB/s)")


def test_a_known_contention_is_no_change(moves):
    alone = moves.line(30, 0.5, 20)
    at_once = moves.over(lambda size, pieces: 4 * alone(size, pieces), seed=3, concurrency=4)
    former = fit(moves.over(alone, seed=2) + at_once)
    assert since(former, at_once) is None
