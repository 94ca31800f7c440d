"""The matrix plot of a probe: what its cells say, and that nothing of it lies on something else."""

from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.cli.probe_claims import Claims
from kvferry.integrations.cli.probe_findings import Finding, Judge
from kvferry.integrations.cli.probe_hosts import Host
from kvferry.integrations.cli.probe_names import shortened
from kvferry.integrations.cli.probe_plot import cell, draw
from kvferry.integrations.probe.measured import Measured
from kvferry.models.paths.sample import Sample

LONG = tuple(f"inference-gpu-node-{n:04d}.rack-17.pod3.eu.example.com" for n in (12, 112, 1112))
BAD = {"gb_s": 0.22, "alpha_s": 900e-6, "gamma_s": 400e-6}


def samples(gb_s: float = 2.3, alpha_s: float = 60e-6, gamma_s: float = 3e-6) -> tuple[Sample, ...]:
    return tuple(
        Sample(size, pieces, alpha_s + size / (gb_s * 1e9) + gamma_s * pieces)
        for size in (4096 * 8**step for step in range(6))
        for pieces in (1, 16, 128)
        if size // pieces >= 256
    )


def found(src: str, dst: str, moves: tuple[Sample, ...], claim: str = "tcp_25g", by: str = "nixl") -> Finding:
    measured = Measured(src, dst, by, moves, src_address=src, dst_address=dst)
    return Judge(Claims.load((claim,)), {src: Host((src,)), dst: Host((dst,))}).found(measured, None, 1.0)


@pytest.mark.parametrize(
    ("how", "claim", "says"),
    [
        ({}, "tcp_25g", "2.3 GB/s\n60 us"),
        ({"gb_s": 0.22}, "tcp_25g", "0.22 GB/s\n60 us\n9.2% of class\nshort: rate"),
        ({"alpha_s": 900e-6}, "tcp_25g", "2.3 GB/s\n900 us\n96% of class\nshort: start"),
        ({"gamma_s": 400e-6}, "tcp_25g", "2.3 GB/s\n60 us\n96% of class\nshort: pieces"),
        ({"gb_s": 0.6}, "tcp_100g", "0.6 GB/s\n60 us\n10% of class"),  # met, but an operator should see it
        (BAD, "tcp_25g", "0.22 GB/s\n900 us\n9.2% of class\nshort: rate,\nstart, pieces"),
    ],
)
def test_a_cell_says_the_share_and_what_falls_short(how: Any, claim: str, says: str) -> None:
    assert cell(found("a", "b", samples(**how), claim)) == says


def test_a_cell_without_figures_says_so() -> None:
    assert cell(found("a", "b", ())) == "not\nmeasured"


@pytest.mark.parametrize("by", [("mooncake",), ("mooncake", "nixl")])
@pytest.mark.parametrize("hosts", [("cpu-2", "cpu-5"), ("10.0.0.2", "$\\frac$", "[/red]"), LONG])
def test_no_words_of_the_plot_touch(hosts: Any, by: Any, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    paths = [
        found(*pair, samples(**BAD) if number % 2 else (), by=transport)
        for transport in by
        for number, pair in enumerate(permutations(hosts, 2))
    ]
    draw(paths, tmp_path / "paths.png")
    (figure,) = drawn
    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)
    panels = figure.axes[: len(by)]
    titles = [*figure.texts, *(axes._left_title for axes in panels)]
    rows = [text for axes in panels for text in axes.get_yticklabels() if text.get_text()]
    slanted = [text for axes in panels for text in axes.get_xticklabels()]
    boxes = {text: text.get_window_extent(renderer) for text in (*titles, *rows, *slanted)}
    for one, other in combinations(boxes, 2):
        # Slanted names stand beside each other, their upright boxes do not.
        if one not in slanted or other not in slanted:
            assert not boxes[one].overlaps(boxes[other]), (one, other)
    for text, box in boxes.items():
        assert figure.bbox.containsx(box.x0), text
        assert figure.bbox.containsx(box.x1), text
        assert figure.bbox.containsy(box.y0), text
        assert figure.bbox.containsy(box.y1), text
    for axes in panels:
        for text in axes.texts:
            box = text.get_window_extent(renderer).transformed(axes.transData.inverted())
            x, y = text.get_position()
            assert np.abs([box.x0 - x, box.x1 - x, box.y0 - y, box.y1 - y]).max() < 0.45


def test_names_lose_what_all_have_and_keep_their_ends() -> None:
    assert shortened(["cpu-2", "cpu-5"], 8) == {"cpu-2": "cpu-2", "cpu-5": "cpu-5"}
    assert shortened(["cpu-2.a.example", "cpu-5.a.example"], 8) == {
        "cpu-2.a.example": "cpu-2", "cpu-5.a.example": "cpu-5",
    }  # fmt: skip
    assert list(shortened(LONG, 8).values()) == ["\u2026de-0012", "\u2026de-0112", "\u2026de-1112"]
    assert list(shortened(["10.0.0.1", "10.1.0.1"], 8).values()) == ["10.0.0.1", "10.1.0.1"]
    assert list(shortened(["a-node-7", "b-node-7"], 4).values()) == ["a\u2026-7", "b\u2026-7"]
    assert shortened([], 8) == {}


@given(st.lists(st.text("ab.1-", min_size=1, max_size=30), max_size=6), st.integers(2, 12))
def test_short_names_tell_the_same_hosts_apart(names: list[str], most: int) -> None:
    short = shortened(names, most)
    assert short.keys() == set(names)
    assert len(set(short.values())) == len(set(names))
