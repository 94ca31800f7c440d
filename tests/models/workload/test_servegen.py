"""ServeGen's condensed form: counts, bursts and lengths of what is sampled."""

from pathlib import Path

import numpy as np
import pytest

from kvferry.models.workload.reader import read
from kvferry.models.workload.trace_file import TraceError

LEVELS = (
    "0",
    "0.01",
    "0.05",
    "0.1",
    "0.2",
    "0.3",
    "0.4",
    "0.5",
    "0.6",
    "0.7",
    "0.8",
    "0.9",
    "0.95",
    "0.99",
    "0.999",
    "1",
)
RATES = "client,t_start_s,rate_rps,iat_cv,iat_family,param1,param2\n"
LENGTHS = "client,t_start_s,field,mean," + ",".join(f"q{level}" for level in LEVELS) + "\n"


def lengths(client: int, start_s: int, field: str, low: float, high: float) -> str:
    values = [low + (high - low) * float(level) for level in LEVELS]
    return f"{client},{start_s},{field},0," + ",".join(map(str, values)) + "\n"


def written(folder: Path, rates: str, quantiles: str) -> Path:
    (folder / "sample__rates.csv").write_text(RATES + rates)
    (folder / "sample__lengths_quantiles.csv").write_text(LENGTHS + quantiles)
    return folder / "sample__rates.csv"


BOTH = lengths(0, 0, "input_tokens", 100, 200) + lengths(0, 0, "output_tokens", 10, 20)


def test_counts_and_times_follow_the_windows(tmp_path: Path) -> None:
    file = written(tmp_path, "0,0,2.0,1,Gamma,1,1\n0,1200,0.5,1,Gamma,1,1\n", BOTH)
    workload = read(file)
    assert workload.name == "sample"
    assert len(workload) == pytest.approx(1500, abs=1)
    in_window = np.histogram(workload.arrival_s, (0, 600, 1200, 1800, 3600))[0]
    assert in_window[1] == in_window[3] == 0
    assert in_window[0] == pytest.approx(1200, abs=60)
    assert in_window[2] == pytest.approx(300, abs=60)


def test_either_file_names_both_and_a_seed_repeats(tmp_path: Path) -> None:
    file = written(tmp_path, "0,0,2.0,2,Weibull,1,1\n", BOTH)
    one = read(file, seed=3)
    other = read(tmp_path / "sample__lengths_quantiles.csv", seed=3)
    assert np.array_equal(one.arrival_s, other.arrival_s)
    assert np.array_equal(one.prompt_tokens, other.prompt_tokens)
    assert not np.array_equal(one.arrival_s, read(file, seed=4).arrival_s)


@pytest.mark.parametrize("family", ["Gamma", "Weibull"])
@pytest.mark.parametrize("cv", [0.4, 1.0, 3.0])
def test_gaps_vary_as_told(tmp_path: Path, family: str, cv: float) -> None:
    rows = "".join(f"0,{600 * place},20,{cv},{family},1,1\n" for place in range(6))
    gaps = np.diff(read(written(tmp_path, rows, BOTH)).arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_another_rate_keeps_the_bursts_and_the_drift(tmp_path: Path) -> None:
    rows = "".join(f"0,{600 * place},{2 if place < 3 else 6},3,Gamma,1,1\n" for place in range(6))
    workload = read(written(tmp_path, rows, BOTH), rate_rps=20)
    assert len(workload) == pytest.approx(20 * 3600, abs=1)
    assert np.mean(workload.arrival_s < 1800) == pytest.approx(0.25, abs=0.02)
    gaps = np.diff(workload.arrival_s[: len(workload) // 5])
    assert gaps.std() / gaps.mean() == pytest.approx(3, rel=0.1)


def test_lengths_of_each_client_and_of_its_window(tmp_path: Path) -> None:
    quantiles = (
        BOTH
        + lengths(0, 21600, "input_tokens", 5000, 6000)
        + lengths(0, 21600, "output_tokens", 1, 1)
        + lengths(1, 0, "input_tokens", 30, 40)
        + lengths(1, 0, "output_tokens", 0, 0.2)
        + lengths(1, 0, "reason_ratio", 0, 1)
    )
    file = written(tmp_path, "0,0,1,1,Gamma,1,1\n1,0,1,1,Gamma,1,1\n0,21600,1,1,Gamma,1,1\n", quantiles)
    early, late = read(file, duration_s=600), read(file, start_s=21600, duration_s=600)
    of_one = early.prompt_tokens < 50
    assert of_one.sum() == pytest.approx(600, abs=1)
    assert early.output_tokens[of_one].max() == 1
    rest = early.prompt_tokens[~of_one]
    assert (rest.min(), rest.max()) == (pytest.approx(100, abs=3), pytest.approx(200, abs=3))
    assert np.median(rest) == pytest.approx(150, abs=10)
    assert late.prompt_tokens.min() >= 5000
    assert late.arrival_s[-1] < 600


def test_a_client_without_lengths_borrows_them(tmp_path: Path) -> None:
    workload = read(written(tmp_path, "0,0,1,1,Gamma,1,1\n9,0,1,1,Gamma,1,1\n", BOTH))
    assert len(workload) == pytest.approx(1200, abs=2)
    assert workload.prompt_tokens.min() >= 100
    alone = read(written(tmp_path, "9,0,1,1,Gamma,1,1\n", BOTH))
    assert alone.prompt_tokens.min() >= 100


@pytest.mark.parametrize(
    ("rates", "quantiles", "said"),
    [
        ("0,0,1,1,Pareto,1,1\n", BOTH, "rates.csv, line 2: iat_family = 'Pareto'"),
        ("0,0,-1,1,Gamma,1,1\n", BOTH, "rates.csv, line 2: rate_rps = '-1'"),
        ("0,0,1,0,Gamma,1,1\n", BOTH, "rates.csv, line 2: iat_cv = '0'"),
        ("0,0,nan,1,Gamma,1,1\n", BOTH, "rates.csv, line 2: rate_rps = 'nan'"),
        ("0,9000,1,1,Gamma,1,1\n", BOTH, "has no request from 0 s to 3600 s"),
        ("0,0,1,1,Gamma,1,1\n", lengths(0, 0, "input_tokens", 9, 1), "line 2: q0 to q1"),
        ("0,0,1,1,Gamma,1,1\n", lengths(0, 0, "input_tokens", 1, 9), "no window with both"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, rates: str, quantiles: str, said: str) -> None:
    with pytest.raises(TraceError) as failure:
        read(written(tmp_path, rates, quantiles))
    assert said in str(failure.value)


def test_one_file_alone_is_not_enough(tmp_path: Path) -> None:
    file = written(tmp_path, "0,0,1,1,Gamma,1,1\n", BOTH)
    (tmp_path / "sample__lengths_quantiles.csv").unlink()
    with pytest.raises(TraceError, match=r"sample__lengths_quantiles\.csv"):
        read(file)
    with pytest.raises(TraceError, match="are named NAME__rates"):
        read(file.rename(tmp_path / "other.csv"))


def test_gaps_too_uneven_for_numbers_still_give_every_request(tmp_path: Path) -> None:
    workload = read(written(tmp_path, "0,0,0.1,150,Gamma,1,1\n", BOTH))
    assert len(workload) == pytest.approx(60, abs=1)
    assert workload.arrival_s.max() <= 600


def test_many_who_send_little_send_their_share(tmp_path: Path) -> None:
    rows = "".join(f"{client},0,0.0008,1,Gamma,1,1\n" for client in range(400))
    assert len(read(written(tmp_path, rows, BOTH))) == pytest.approx(0.48 * 400, rel=0.2)
