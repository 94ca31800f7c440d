"""Scenarios from TOML: the documented form, and what is said of mistakes."""

import re
from pathlib import Path

import pytest

from kvferry.models.toml_file import ConfigError, read_toml
from kvferry.models.workload.arrivals import Arrivals
from kvferry.models.workload.lengths import Fixed, Lognormal, Mixture, Quantiles, Uniform
from kvferry.models.workload.reader import read
from kvferry.models.workload.scenario import Scenario
from kvferry.models.workload.scenario_file import scenario_of

DOCS = Path(__file__).parents[3] / "docs" / "workloads.md"
STREAM = "[[stream]]\nrate_rps = 2\nopening_tokens = 100\noutput_tokens = 5\n"


def read_scenario(file: Path) -> Scenario:
    return scenario_of(read_toml(file), str(file), file.stem)


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text)
    return file


def test_the_documented_example(tmp_path: Path) -> None:
    example = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)[1]
    scenario = read_scenario(written(tmp_path, example))
    chat, batch = scenario.streams
    assert (scenario.name, scenario.duration_s) == ("evening", 600)
    assert chat.arrivals == Arrivals("gamma", 2.0)
    assert chat.session.opening == Lognormal(median=600, sigma=1.0, low=16, high=16000)
    assert chat.session.turns == Uniform(1, 8)
    assert chat.session.follow == Quantiles((0, 0.5, 1), (5, 80, 2000))
    assert chat.session.system_tokens == 1024
    assert batch.arrivals == Arrivals(on_s=20, off_s=40)
    assert batch.session.opening == Mixture((Lognormal(12000, 0.5), Fixed(4096)), (3, 1))
    assert batch.session.turns == Fixed(1)
    assert [phase.factors for phase in scenario.phases] == [(1, 0), (0.5, 1)]
    assert [phase.share for phase in scenario.phases] == [2, 1]
    workload = read(tmp_path / "mine.toml", duration_s=60, rate_rps=20)
    assert 600 < len(workload) < 2000


def test_the_least_that_is_needed(tmp_path: Path) -> None:
    workload = read(written(tmp_path, STREAM))
    assert workload.name == "mine"
    assert set(workload.prompt_tokens) == {100}
    assert len(workload) == pytest.approx(1200, rel=0.15)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no streams"),
        ("[[stream]]\nrate_rps = 2\noutput_tokens = 5", "stream 1: opening_tokens is missing"),
        ("[[stream]]\nopening_tokens = 2\noutput_tokens = 5", "'rate_rps' is missing"),
        (STREAM + "turnz = 3", "unknown key 'turnz'"),
        (STREAM + "turns = 'many'", "turns = 'many' is neither"),
        (STREAM + "turns = true", "turns = True is neither"),
        (STREAM + "turns = -1", "turns: lengths: -1"),
        (STREAM + "turns = {uniform = [3]}", "uniform = [lowest, highest]"),
        (STREAM + "turns = {uniform = [3, 1]}", "turns: lengths: uniform from 3"),
        (STREAM + "turns = {median = 3}", "'sigma' is missing"),
        (STREAM + "turns = {median = 3, sigma = 1, sgima = 2}", "unknown key 'sgima'"),
        (STREAM + "turns = {levels = [0, 1], values = 3}", "'values' must be a list"),
        (STREAM + "turns = {mix = [{weight = 0, value = 3}]}", "turns: lengths: weights"),
        (STREAM + "turns = {mix = 3}", "'mix' must be written"),
        (STREAM + "arrivals = 'pareto'", "unknown family 'pareto'"),
        (STREAM + "cv = 2", "poisson cannot have cv"),
        (STREAM + "system_tokens = 1.5", "system_tokens = 1.5 is no whole number"),
        (STREAM + "[[phase]]\nstream9 = 1", "phase 1: unknown key 'stream9'"),
        (STREAM + "[[phase]]\nshare = 0", "does not fit"),
        ("duration = 3\n" + STREAM, "unknown key 'duration'"),
        ("name = ", "broken TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as failure:
        read_scenario(file)
    assert str(file) in str(failure.value)
    assert said in str(failure.value)


def test_two_streams_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = STREAM.replace("rate_rps", 'name = "a"\nrate_rps')
    with pytest.raises(ConfigError, match="two streams are named 'a'"):
        read_scenario(written(tmp_path, twice + twice))
