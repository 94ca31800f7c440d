import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.simulator.step_fit import StepFit, StepSample, fit_steps
from kvferry.models.simulator.steps import StepTimes

TRUTH = StepFit(
    decode_s=((1, 0.010), (64, 0.011), (512, 0.030)),
    tokens_s=((32, 0.013), (1024, 0.055), (1032, 0.064), (16384, 0.9)),
    attention_s=1.6e-9,
    context_s=3e-8,
    mixed_s=0.0014,
)


def steps_of(fit: StepFit) -> list[StepSample]:
    shapes = [(b, float(b * context), 0, 0.0) for b in (1, 4, 64, 200, 512) for context in (100, 9000)]
    tokens = (32, 100, 1024, 1032, 1040, 5000, 16000)
    shapes += [(0, 0.0, n, n * (p + n / 2)) for n in tokens for p in (0, 8000)]
    shapes += [(b, b * 4000.0, 2048, 2048 * 1024.0) for b in (8, 64)]
    return [StepSample(*shape, seconds=fit.predict(StepSample(*shape, 1.0))) for shape in shapes]


def test_the_tables_hold_every_integer_and_go_on_with_their_last_slope() -> None:
    times = StepTimes([1.0, 1.0, 3.0], [2.0, 2.5], attention_s=0, context_s=0, mixed_s=0)
    assert [times.decode_s(batch) for batch in (0, 1, 2, 3, 5)] == [1.0, 1.0, 3.0, 5.0, 9.0]
    assert times.tokens_s(3) == pytest.approx(3.5)


def test_a_baked_table_agrees_with_the_lines_between_the_knots() -> None:
    times = TRUTH.bake()
    assert times.decode_s(0) == times.decode_s(1) == 0.010
    assert times.decode_s(64) == 0.011
    assert times.decode_s(288) == pytest.approx(0.0205)
    assert times.tokens_s(1024) == 0.055
    assert times.tokens_s(1028) == pytest.approx(0.0595)


def test_a_fit_finds_the_terms_that_made_its_samples() -> None:
    samples = steps_of(TRUTH)
    fit = fit_steps(samples)
    assert fit.attention_s == pytest.approx(TRUTH.attention_s, rel=0.02)
    assert fit.context_s == pytest.approx(TRUTH.context_s, rel=0.02)
    assert fit.mixed_s == pytest.approx(TRUTH.mixed_s, rel=0.2)
    assert max(p90 for _, p90 in fit.errors(samples).values()) < 0.02
    assert set(fit.errors(samples)) == {"decode", "mixed", "prefill"}


def test_a_fit_keeps_the_step_between_two_tiles() -> None:
    fit = fit_steps(steps_of(TRUTH)).bake()
    assert fit.tokens_s(1032) - fit.tokens_s(1024) > 0.007


def test_a_straight_line_needs_two_knots() -> None:
    samples = [StepSample(b, 0.0, 0, 0.0, 0.01 + 1e-5 * b) for b in (1, 2, 4, 8, 16, 32, 64, 128)]
    samples += [StepSample(0, 0.0, n, 0.0, 0.01 + 1e-5 * n) for n in (32, 64, 128, 256, 512)]
    fit = fit_steps(samples)
    assert (len(fit.decode_s), len(fit.tokens_s)) == (2, 2)


@given(st.lists(st.floats(0.5, 2.0), min_size=26, max_size=26))
def test_no_fit_falls_or_takes_negative_time(noise: list[float]) -> None:
    samples = steps_of(TRUTH)
    noisy = [
        StepSample(s.decodes, s.context, s.tokens, s.attention, s.seconds * factor)
        for s, factor in zip(samples, noise, strict=True)
    ]
    fit = fit_steps(noisy)
    assert min(fit.attention_s, fit.context_s, fit.mixed_s) >= 0
    for knots in (fit.decode_s, fit.tokens_s):
        assert (np.diff([seconds for _, seconds in knots]) >= 0).all()
