"""How a worker lays out its KV cache, and whether two layouts can exchange it."""

from dataclasses import dataclass
from enum import StrEnum

from kvferry.policy.kvshape import KVShape


class LayoutOrder(StrEnum):
    LAYER_FIRST = "layer_first"
    PAGE_FIRST = "page_first"


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What SGLang compares when a decode worker meets a prefill worker (facts: bootstrap checks).

    `dtype` is the KV cache's; `tp`, `pp`, `dp`, `cp` are parallel degrees (ranks). `tp` is the attention
    TP, i.e. SGLang's tp_size / dp_size under DP attention. `dcp` is decode context parallelism.
    """

    page_size: int = 1
    dtype: str = "bfloat16"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    dcp: int = 1
    mla: bool = False
    order: LayoutOrder = LayoutOrder.LAYER_FIRST
    staging_buffer: bool = False


class RelationKind(StrEnum):
    DIRECT = "direct"
    SLICED = "sliced"
    STAGED = "staged"
    REPACK = "repack"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Relation:
    """What moving KV between two layouts takes.

    `descriptors_per_token` counts transfer descriptors for one prompt token when pages are scattered
    (the worst case); `steps` names repack steps; `reason` says why an impossible pair is impossible.
    """

    kind: RelationKind
    descriptors_per_token: float = 0.0
    steps: tuple[str, ...] = ()
    reason: str = ""

    @property
    def possible(self) -> bool:
        return self.kind is not RelationKind.IMPOSSIBLE


def _impossible(reason: str) -> Relation:
    return Relation(RelationKind.IMPOSSIBLE, reason=reason)


def relate(src: KVLayout, dst: KVLayout, shape: KVShape) -> Relation:
    """Relation of a prefill worker's layout to a decode worker's, by SGLang 0.5.23's own rules.

    Refused at bootstrap: another page size, KV dtype or order; a decode PP that is neither 1 nor the
    prefill's; decode CP; DCP other than equal or 1-to-N, and any DCP on decode without MLA or behind a
    prefill CP. Equal attention TP, or MLA at any TP, moves pages directly (MLA whose cache is sharded
    over ranks is not modelled); unequal TP slices heads (one descriptor per token, layer and K/V) or,
    with a staging buffer on both sides, gathers and scatters.
    """
    if src.page_size != dst.page_size:
        return _impossible(f"page size {src.page_size} on prefill, {dst.page_size} on decode")
    if src.dtype != dst.dtype:
        return _impossible(f"KV dtype {src.dtype} on prefill, {dst.dtype} on decode")
    if src.order is not dst.order:
        return _impossible(f"KV order {src.order} on prefill, {dst.order} on decode")
    if src.mla != dst.mla:
        return _impossible("MLA on one side only")
    if dst.pp not in (1, src.pp):
        return _impossible(f"decode PP {dst.pp} is neither 1 nor the prefill's {src.pp}")
    if dst.cp != 1:
        return _impossible(f"decode context parallelism {dst.cp} is not 1")
    if src.dcp != dst.dcp and not (src.mla and src.dcp == 1):
        return _impossible(f"DCP {src.dcp} on prefill, {dst.dcp} on decode")
    if dst.dcp > 1 and not src.mla:
        return _impossible(f"DCP {dst.dcp} on decode without MLA")
    if dst.dcp > 1 and src.cp != 1:
        return _impossible(f"DCP {dst.dcp} on decode needs prefill CP 1, not {src.cp}")
    kinds = 1 if src.mla else 2
    by_page = shape.layers * kinds * max(src.tp, dst.tp) / src.page_size
    if src.tp == dst.tp or src.mla:
        return Relation(RelationKind.DIRECT, descriptors_per_token=by_page)
    if src.staging_buffer and dst.staging_buffer:
        return Relation(RelationKind.STAGED, descriptors_per_token=0.0, steps=("gather", "scatter"))
    return Relation(
        RelationKind.SLICED, descriptors_per_token=float(shape.layers * kinds * max(src.tp, dst.tp))
    )
