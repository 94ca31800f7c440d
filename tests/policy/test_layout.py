"""SGLang 0.5.23's rules for a prefill and a decode worker, as a table."""

from dataclasses import replace

import pytest
from worlds import GQA, MLA

from kvferry.policy.layout import KVLayout, LayoutOrder, RelationKind, relate

BASE = KVLayout(page_size=1, tp=2, pp=2)
LATENT = replace(BASE, mla=True)
STAGING = replace(BASE, staging_buffer=True)
PAGE_FIRST = LayoutOrder.PAGE_FIRST
DIRECT, SLICED, STAGED, IMPOSSIBLE = "direct", "sliced", "staged", "impossible"

TABLE = [
    # prefill, what decode changes, relation, part of the reason
    (BASE, {}, DIRECT, ""),
    (BASE, {"page_size": 16}, IMPOSSIBLE, "page size 1 on prefill, 16 on decode"),
    (BASE, {"dtype": "fp8_e4m3"}, IMPOSSIBLE, "KV dtype bfloat16 on prefill, fp8_e4m3 on decode"),
    (BASE, {"order": PAGE_FIRST}, IMPOSSIBLE, "KV order layer_first on prefill, page_first on decode"),
    (BASE, {"mla": True}, IMPOSSIBLE, "MLA on one side only"),
    (BASE, {"pp": 1}, DIRECT, ""),
    (BASE, {"pp": 4}, IMPOSSIBLE, "decode PP 4 is neither 1 nor the prefill's 2"),
    (BASE, {"cp": 2}, IMPOSSIBLE, "decode context parallelism 2 is not 1"),
    (replace(BASE, cp=2), {"cp": 1}, DIRECT, ""),
    (BASE, {"dp": 4}, DIRECT, ""),
    (BASE, {"tp": 4}, SLICED, ""),
    (BASE, {"tp": 1}, SLICED, ""),
    (STAGING, {"tp": 4}, STAGED, ""),
    (STAGING, {"tp": 2}, DIRECT, ""),
    (STAGING, {"tp": 4, "staging_buffer": False}, SLICED, ""),
    (LATENT, {"tp": 8}, DIRECT, ""),
    (LATENT, {"dcp": 4}, DIRECT, ""),
    (replace(LATENT, dcp=2), {}, DIRECT, ""),
    (replace(LATENT, dcp=2), {"dcp": 4}, IMPOSSIBLE, "DCP 2 on prefill, 4 on decode"),
    (replace(LATENT, dcp=2), {"dcp": 1}, IMPOSSIBLE, "DCP 2 on prefill, 1 on decode"),
    (replace(LATENT, cp=2), {"cp": 1, "dcp": 4}, IMPOSSIBLE, "needs prefill CP 1"),
    (BASE, {"dcp": 4}, IMPOSSIBLE, "DCP 1 on prefill, 4 on decode"),
    (replace(BASE, dcp=2), {}, IMPOSSIBLE, "without MLA"),
]


@pytest.mark.parametrize(("src", "changes", "kind", "reason"), TABLE)
def test_relate(src: KVLayout, changes: dict, kind: str, reason: str) -> None:
    found = relate(src, replace(src, **changes), MLA if src.mla else GQA)
    assert found.kind == kind
    assert reason in found.reason
    assert found.possible is (kind != IMPOSSIBLE)
    assert bool(found.reason) is (kind == IMPOSSIBLE)


def test_slicing_takes_a_descriptor_per_token_layer_kind_and_rank() -> None:
    pages = relate(replace(BASE, page_size=64), replace(BASE, page_size=64), GQA)
    slices = relate(replace(BASE, page_size=64), replace(BASE, page_size=64, tp=4), GQA)
    assert pages.descriptors_per_token == GQA.layers * 2 * 2 / 64
    assert slices.descriptors_per_token == GQA.layers * 2 * 4


def test_mla_moves_one_vector_per_layer() -> None:
    assert relate(LATENT, LATENT, MLA).descriptors_per_token == MLA.layers * 2


def test_staging_takes_two_steps() -> None:
    found = relate(STAGING, replace(STAGING, tp=4), GQA)
    assert found.kind is RelationKind.STAGED
    assert found.steps == ("gather", "scatter")
