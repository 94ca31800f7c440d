"""The published traces, where they are at hand."""

from pathlib import Path

import numpy as np
import pytest

from kvferry.models.workload.reader import read
from kvferry.models.workload.scale import at_rate, first_half, mix, second_half

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the published traces are not at ../shared")
MOONCAKE, AZURE = TRACES / "mooncake_conversation.jsonl.gz", TRACES / "azure2023_conv.csv.gz"


def cv(times_s: np.ndarray) -> float:
    gaps = np.diff(times_s)
    return float(gaps.std() / gaps.mean())


def test_mooncake() -> None:
    stamped, workload = read(MOONCAKE, spread_steps=False), read(MOONCAKE)
    assert len(workload) == 12_031
    assert np.quantile(workload.prompt_tokens, (0.5, 0.9)).tolist() == pytest.approx([6909, 27367], abs=1)
    assert np.median(workload.output_tokens) == 350
    assert cv(stamped.arrival_s) > 2
    assert 0.8 < cv(workload.arrival_s) < 1.3
    assert np.all(np.abs(workload.arrival_s - stamped.arrival_s - 1.5) < 1.51)
    assert np.all(np.diff(workload.block_starts) <= workload.prompt_tokens // 512)
    before: dict[int, int] = {}
    for row in range(len(workload)):  # a block's name tells all that stands before it
        last = -1
        for block in workload.blocks_of(row):
            assert before.setdefault(block, last) == last
            last = block
    reused_tokens = (len(workload.block_ids) - len(before)) * 512
    assert reused_tokens / workload.prompt_tokens.sum() == pytest.approx(0.37, abs=0.01)


def test_azure() -> None:
    workload = read(AZURE)
    assert len(workload) == 19_366
    assert workload.rate_rps == pytest.approx(5.53, abs=0.01)
    assert np.quantile(workload.prompt_tokens, (0.5, 0.9)).tolist() == pytest.approx([1020, 2735], abs=1)
    assert np.median(workload.output_tokens) == 129


def test_halves_rates_and_the_mix() -> None:
    chat, long = read(AZURE), read(MOONCAKE)
    early, late = first_half(long), second_half(long)
    assert len(early) + len(late) == len(long)
    assert early.duration_s == pytest.approx(late.duration_s, rel=0.01)
    fast = at_rate(late, 12.0, 300.0)
    assert len(fast) == 3600
    assert cv(fast.arrival_s) == pytest.approx(cv(late.arrival_s[:3601]), rel=0.02)
    mixed = mix([(chat, 6), (long, 1)], 20.0)
    assert mixed.rate_rps == pytest.approx(20, rel=0.01)
    assert len(mixed) == pytest.approx(7 / 6 * len(chat), abs=2)


def test_servegen_language() -> None:
    workload = read(TRACES / "language_m-large__rates.csv.gz", rate_rps=5.0)
    assert len(workload) == pytest.approx(18_000, abs=60)
    assert workload.arrival_s[0] >= 0
    assert workload.arrival_s[-1] < 3600


def test_servegen_reasoning_drifts_over_its_day() -> None:
    workload = read(TRACES / "reason_deepseek-r1__rates.csv.gz", rate_rps=0.2, duration_s=86_400.0)
    per_hour = np.histogram(workload.arrival_s, 24, (0, 86_400))[0]
    assert per_hour.max() > 3 * per_hour.min()
    assert np.mean(workload.output_tokens) > 600
