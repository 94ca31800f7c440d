"""Seconds per byte of repacking, per kind of relation."""

import pytest

from kvferry.models.terms.repack import Repacks

ASSUMED = 2e-11


def test_what_was_measured_replaces_what_is_assumed_for_that_relation_alone() -> None:
    repacks = Repacks()
    assert repacks.s_per_byte(["staged", "direct"], [ASSUMED, 0.0], 0.0) == [ASSUMED, 0.0]
    for now_s in range(1, 31):
        repacks.done("staged", ASSUMED, 1e9 + 1e8 * now_s, 1e-10 * (1e9 + 1e8 * now_s), float(now_s))
    staged, direct, unknown = repacks.s_per_byte(["staged", "direct", ""], [ASSUMED, 0.0, 0.0], 31.0)
    assert staged == pytest.approx(1e-10, rel=0.05)
    assert direct == unknown == 0.0


@pytest.mark.parametrize("took_s", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("moved_bytes", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_nonsense_teaches_nothing(took_s: float, moved_bytes: float) -> None:
    repacks = Repacks()
    repacks.done("staged", ASSUMED, moved_bytes, took_s, 1.0)
    assert repacks.s_per_byte(["staged"], [ASSUMED], 1.0) == [ASSUMED]
