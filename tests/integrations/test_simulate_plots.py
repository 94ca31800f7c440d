"""The picture of a comparison: what it says, read back from an SVG whose text is text."""

from pathlib import Path

import pytest

from kvferry.integrations.cli.errors import UsageError
from kvferry.integrations.simulate.plot_axes import KIND_COLOURS
from kvferry.integrations.simulate.plots import COLOURS, draw, setting_of
from kvferry.models.simulator.cluster_file import read_cluster
from kvferry.models.simulator.metrics import KINDS

matplotlib = pytest.importorskip("matplotlib")

TIMELINE = {"edges_s": [0.0, 10.0, 20.0], **{kind: [10, 20] for kind in KINDS}}
SETTING = setting_of(read_cluster("2p2d4c").spec, 3, 2)


@pytest.fixture
def text(tmp_path: Path):  # type: ignore[no-untyped-def]
    def drawn(curves, attained) -> str:  # type: ignore[no-untyped-def]
        timelines = dict.fromkeys(attained, TIMELINE)
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            draw(curves, attained, timelines, [(5.0, "d0 dies")], "title", tmp_path / "x.svg", SETTING)
        return (tmp_path / "x.svg").read_text()

    return drawn


def test_bars_stand_in_the_order_of_the_table_with_whole_figures(text) -> None:  # type: ignore[no-untyped-def]
    svg = text({}, {"bad": 0.046, "good": 0.954, "unknown": None})
    assert all(f">{told}<" in svg for told in ("4.6%", "95.4%", "-", "90% of requests", "d0 dies"))
    places = [svg.index(f">{name}<") for name in ("unknown", "bad", "good")]  # ticks go upwards
    assert places == sorted(places)
    assert "at a mean of 6 requests/s" in svg


def test_the_title_names_what_was_simulated() -> None:
    assert SETTING.startswith("Qwen3-32B, h200 TP2: 2 prefill, 2 decode, 4 colocated; ")
    assert SETTING.endswith("; seeds 3 to 4")


def test_curves_have_plain_rates_and_tell_goodputs(text) -> None:  # type: ignore[no-untyped-def]
    points = [(1.0, 0.99, 0.9), (4.0, 0.93, 0.9), (8.0, 0.7, 0.6), (16.0, None, None)]
    svg = text({"a": [points, points[:1]], "b": [points[2:]]}, {"a": 0.9, "b": 0.1})
    assert all(f">{rate}<" in svg for rate in ("0.5", "1", "2", "5", "10"))
    assert ">a: 2.5/s<" in svg  # the mean of 4 and 1
    assert ">2.5<" in svg
    assert ">b: none<" in svg
    assert "10^" not in svg


def test_no_colour_means_two_things() -> None:
    assert not set(COLOURS) & set(KIND_COLOURS.values())


@pytest.mark.parametrize("name", ["x", "x.csv"])
def test_a_name_that_is_no_picture_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        draw({}, {}, {}, [], "", tmp_path / name)
