import math

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import UnfitError, fit
from kvferry.models.paths.nonnegative import least_squares
from kvferry.models.paths.sample import Sample, cells

FACTS = {  # facts/transports.md: alpha us, beta ns/B, gamma us
    "mooncake_tcp": (51, 0.581, 24.7),
    "mooncake_tcp_min": (31, 0.482, 25.8),
    "nixl_cma": (14, 0.085, 3.7),
    "nixl_cma_small": (16, 0.081, 3.0),
    "nixl_tcp": (18, 0.386, 9.3),
}
MIB = 2**20
# A fit takes a third of a second: too long to shrink by, and noise must not fail now and then.
some = settings(max_examples=8, deadline=None, derandomize=True, phases=(Phase.generate,))


def near(found: float, known: float, share: float) -> bool:
    return abs(found / known - 1.0) <= share


@pytest.mark.parametrize("case", FACTS)
def test_the_figures_of_the_facts_are_found_again(moves, case):
    alpha_us, ns, gamma_us = FACTS[case]
    found = fit(moves.over(moves.line(alpha_us, ns, gamma_us), seed=1, odd=0.05))
    assert not found.curve.two_regimes
    assert near(found.curve.alpha_s * 1e6, alpha_us, 0.15)
    assert near(found.curve.s_per_byte * 1e9, ns, 0.1)
    assert near(found.curve.gamma_s * 1e6, gamma_us, 0.1)
    assert found.median_error < 0.08


@some
@given(
    st.floats(5, 2000), st.floats(0.02, 10), st.floats(0.5, 100), st.floats(0.02, 0.1), st.integers(0, 10**6)
)
def test_known_coefficients_are_recovered_under_noise_and_outliers(moves, alpha, ns, gamma, noise, seed):
    found = fit(moves.over(moves.line(alpha, ns, gamma), seed, noise, odd=0.05))
    takes = moves.line(alpha, ns, gamma)
    assert near(found.curve.beta_bytes_per_s, 1e9 / ns, 0.2)
    off = [abs(found.predict(*cell) / takes(*cell) - 1.0) for cell in moves.cells]
    assert np.median(off) < 0.08
    assert max(off) < 0.3


@some
@given(st.integers(0, 10**6), st.floats(9, 63))
def test_the_two_regimes_of_cma_are_told_apart(moves, seed, split_mib):
    small, large = moves.line(16, 0.081, 3.0), moves.line(5900, 0.257, 15.7)

    def takes(size: float, pieces: float) -> float:
        return (small if size < split_mib * MIB else large)(size, pieces)

    sizes = (0.004, 0.03, 0.25, 1, 2, 4, 8, 64, 96, 128, 192, 256)
    measured = [
        (int(mib * MIB), pieces) for mib in sizes for pieces in (1, 4, 256) if mib * MIB >= pieces * 1024
    ]
    found = fit(moves.over(takes, seed, 0.05, odd=0.03, cells=measured)).curve
    assert found.two_regimes
    assert 8 * MIB <= found.split_bytes < 64 * MIB
    assert near(found.s_per_byte, 0.081e-9, 0.2)
    assert near(found.beta_bytes_per_s, 3.9e9, 0.2)
    for cell in measured:
        assert near(found.predict(*cell), takes(*cell), 0.35)


@some
@given(st.integers(0, 10**6), st.sampled_from([1, 5]), st.floats(1, 12))
def test_a_shaped_path_shows_its_rate_and_not_its_burst(moves, seed, gbit_s, burst_mib):
    burst, rate = burst_mib * MIB, gbit_s * 1e9 / 8

    def takes(size: float, pieces: float) -> float:
        return 100e-6 + size * 1e-10 + max(0.0, size - burst) / rate + 5e-6 * pieces

    found = fit(moves.over(takes, seed, 0.05, odd=0.03)).curve
    assert near(found.beta_bytes_per_s, 1.0 / (1.0 / rate + 1e-10), 0.1)
    if gbit_s == 1:
        assert found.two_regimes
        assert near(found.split_bytes, burst, 0.5)


@some
@given(st.integers(0, 10**6), st.sampled_from([1, 5]), st.floats(0.1, 2))
def test_descriptors_that_are_posted_while_bytes_move_do_not_add_to_them(moves, seed, gbit_s, burst_mib):
    burst, rate = burst_mib * MIB, gbit_s * 1e9 / 8

    def takes(size: float, pieces: float) -> float:
        return 100e-6 + max(size * 4e-10 + max(0.0, size - burst) / rate, 26e-6 * pieces)

    found = fit(moves.over(takes, seed, 0.05, odd=0.03))
    assert near(found.curve.beta_bytes_per_s, 1.0 / (1.0 / rate + 4e-10), 0.1)
    assert found.median_error < 0.08
    if gbit_s == 5:  # on a slower path the bytes are the larger part of nearly all moves
        assert found.curve.overlapped
        assert near(found.curve.gamma_s, 26e-6, 0.15)
    off = [abs(found.predict(*cell) / takes(*cell) - 1.0) for cell in moves.cells]
    assert np.median(off) < 0.08


@some
@given(st.integers(0, 10**6), st.floats(0.0, 0.1))
def test_what_adds_up_is_not_taken_to_overlap(moves, seed, noise):
    assert not fit(moves.over(moves.line(50, 0.5, 20), seed, noise)).curve.overlapped


@some
@given(st.integers(0, 10**6), st.floats(0.0, 0.4))
def test_one_line_stays_one_line_however_noisy(moves, seed, noise):
    found = fit(moves.over(moves.line(50, 0.5, 20), seed, noise, odd=0.05))
    wrong = found.curve.two_regimes and not near(found.curve.beta_bytes_per_s, 2e9, 0.5)
    assert not wrong


positive = st.floats(0, 1, allow_nan=False)


@given(
    st.builds(
        Curve, positive, positive, positive, st.one_of(st.just(math.inf), st.floats(1, 1e9)),
        positive, positive, positive, st.booleans(),
    ),
    st.tuples(st.floats(1, 1e10), st.floats(1, 1e6)),
    st.tuples(st.floats(0, 1e10), st.floats(0, 1e6)),
)  # fmt: skip
def test_more_never_takes_less(curve, at, more):
    less, greater = curve.predict(*at), curve.predict(at[0] + more[0], at[1] + more[1])
    assert greater >= less * (1.0 - 1e-12)


@some
@given(st.integers(0, 10**6), st.floats(0, 0.8))
def test_a_fit_has_no_negative_coefficient(moves, seed, noise):
    curve = fit(moves.over(moves.line(50, 0.5, 20), seed, noise, repeats=1)).curve
    named = (curve.alpha_s, curve.s_per_byte, curve.gamma_s, curve.jump_s, curve.late_s_per_byte)
    assert min(*named, curve.late_gamma_s) >= 0.0


@pytest.mark.parametrize("each", [0.0, 0.5, 1.0])
def test_moves_at_once_show_their_contention(moves, each):
    alone = moves.line(30, 0.5, 20)
    samples = moves.over(alone, seed=2)
    for n in (2, 4, 8):
        at_once = lambda size, pieces, n=n: 30e-6 + (alone(size, pieces) - 30e-6) * (1 + each * (n - 1))  # noqa: E731
        samples += moves.over(at_once, seed=n, concurrency=n)
    found = fit(samples)
    assert found.contention == pytest.approx(each, abs=0.12)
    whole = found.predict(64 * MIB, 16, in_flight=3)
    assert near(whole, alone(64 * MIB, 16) * (1 + each * 3), 0.15)


def test_without_moves_at_once_contention_is_not_known_and_taken_for_n_fold(moves):
    found = fit(moves.over(moves.line(30, 0.5, 20)))
    assert found.contention is None
    assert near(found.predict(64 * MIB, 1, in_flight=1), 2 * found.predict(64 * MIB, 1), 0.01)


def test_the_error_is_that_of_moves_not_seen(moves):
    quiet, loud = (fit(moves.over(moves.line(50, 0.5, 20), 3, noise, repeats=1)) for noise in (0.01, 0.4))
    assert quiet.median_error < 0.03
    assert quiet.max_error < 0.1
    assert loud.median_error > 0.15


def test_moves_of_one_descriptor_leave_all_of_the_start_to_alpha(moves):
    found = fit(moves.over(moves.line(50, 0.5, 20), cells=[(size, 1) for size, n in moves.cells if n == 1]))
    assert near(found.curve.alpha_s, 70e-6, 0.15)
    assert found.curve.gamma_s == 0.0


def test_what_tells_too_little_is_refused(moves):
    with pytest.raises(UnfitError, match="at least 4"):
        fit([Sample(4096, 1, 1e-3), Sample(8192, 1, 2e-3)])
    with pytest.raises(UnfitError, match="at least 4"):
        fit([Sample(4096, pieces, 1e-3 * pieces) for pieces in range(1, 9)])
    with pytest.raises(UnfitError, match="larger"):
        fit([Sample(size, 1, 1e-3) for size, pieces in moves.cells if pieces == 1])


def test_repeated_moves_are_one_cell_with_their_median():
    seen = cells(
        [Sample(4096, 1, took_s) for took_s in (1.0, 2.0, 90.0)] + [Sample(4096, 1, 5.0, concurrency=2)]
    )
    assert seen.total_s.tolist() == [2.0]


@pytest.mark.parametrize(
    "odd", [(0, 1, 1.0, 1), (1, 0, 1.0, 1), (1, 1, 0.0, 1), (1, 1, math.nan, 1), (1, 1, 1.0, 0)]
)
def test_what_no_move_can_be_is_refused(odd):
    with pytest.raises(ValueError, match="move"):
        Sample(*odd)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(6, 20))
def test_the_solver_finds_an_optimum_within_the_bounds(seed, columns, rows):
    rng = np.random.default_rng(seed)
    matrix, target = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    x = least_squares(matrix, target)
    pull = matrix.T @ (target - matrix @ x)
    assert (x >= 0.0).all()
    assert (pull <= 1e-6).all()
    assert np.abs(pull[x > 0.0]).max(initial=0.0) <= 1e-6
