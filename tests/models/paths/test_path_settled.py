"""A path that changes while it is measured is described by what it is at the end."""

import pytest

from kvferry.models.paths.fit import UnfitError, fit
from kvferry.models.paths.settled import settled

ROUNDS = 6
FAST, SLOW = (50, 0.42, 5), (50, 4.2, 5)


def run_of(moves, rounds_before, first=FAST, then=SLOW, seed=0):
    before = moves.over(moves.line(*first), seed=seed, odd=0.02, repeats=rounds_before)
    return before, moves.over(moves.line(*then), seed=seed + 1, odd=0.02, repeats=ROUNDS - rounds_before)


@pytest.mark.parametrize("rounds_before", range(1, ROUNDS))
@pytest.mark.parametrize(("first", "then", "times"), [(FAST, SLOW, 10.0), (SLOW, FAST, 0.1)])
def test_what_holds_at_the_end_is_told_and_since_when(moves, rounds_before, first, then, times):
    before, after = run_of(moves, rounds_before, first, then)
    now = settled(before + after)
    assert now.change is not None
    assert now.change.slower == pytest.approx(times, rel=0.2)
    # a round begins with small moves, which say nothing of the rate
    assert abs(now.since - len(before)) <= len(moves.cells)
    assert now.fitted.curve.s_per_byte == pytest.approx(then[1] * 1e-9, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_a_path_that_stays_is_fitted_to_all_its_moves(moves, seed):
    samples = moves.over(moves.line(*FAST), seed=seed, odd=0.03, repeats=ROUNDS)
    now = settled(samples)
    assert (now.since, now.change) == (0, None)
    assert now.fitted == fit(samples)


def test_two_regimes_in_one_ascending_round_are_no_change(moves):
    def shaped(size, pieces):
        return 5e-5 + 4e-10 * min(size, 2**24) + 4e-9 * max(0, size - 2**24) + 5e-6 * pieces

    now = settled(moves.over(shaped, repeats=1))
    assert now.change is None


@pytest.mark.parametrize("each", [0.0, 0.3])
def test_moves_at_once_are_no_change(moves, each):
    alone = moves.line(*FAST)
    samples = moves.over(alone, repeats=2)
    samples += moves.over(
        lambda size, pieces: (1 + 3 * each) * alone(size, pieces), repeats=2, concurrency=4, seed=1
    )
    now = settled(samples)
    assert now.change is None
    assert now.fitted.contention == pytest.approx(each, abs=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_a_noisy_path_has_not_changed(moves, seed):
    assert settled(moves.over(moves.line(*FAST), seed=seed, noise=0.5, repeats=3)).change is None


def test_small_moves_that_wait_for_large_ones_are_no_change(moves):
    """A shaper lets the first ones through; later it still has the queue of the large ones."""
    line = moves.line(50, 30.0, 5)

    def later(size, pieces):
        return line(size, pieces) + 0.02 * (size <= 2**18)

    samples = moves.over(line, repeats=1) + moves.over(later, repeats=3, seed=1)
    assert settled(samples).change is None


def test_too_little_to_fit_is_said():
    with pytest.raises(UnfitError, match="measure at least 4"):
        settled([])
