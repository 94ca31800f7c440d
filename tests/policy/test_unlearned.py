"""What moves would take by the links' own figures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import ask, cluster, clusters, requests, trio

from kvferry.policy import base
from kvferry.policy.cluster import Cluster
from kvferry.policy.predict import TRANSFER, predict
from kvferry.policy.request import Request
from kvferry.policy.unlearned import catalogue_transfer_s

LEARNED = (
    ("link_slowness", 1.0),
    ("link_byte_factor", 1.0),
    ("link_descriptor_factor", 1.0),
    ("link_offset_s", 0.0),
    ("link_more_per_byte", 0.0),
)


def taught(world: Cluster, *figures: float) -> Cluster:
    """The same cluster, all of whose links have shown these `figures`, in the order of LEARNED."""
    count = len(world.state.link_slowness)
    shown = {name: np.full(count, value) for (name, _), value in zip(LEARNED, figures, strict=True)}
    return replace(world, state=replace(world.state, **shown))


def said(request: Request, world: Cluster) -> list[float]:
    prediction = predict(request, world)
    return [catalogue_transfer_s(world, prediction, row) for row in range(len(world.candidates.plans))]


worlds = st.one_of(clusters(), clusters(same_layout=True))


@given(worlds, requests)
def test_with_nothing_learned_it_is_the_structured_transfer(world: Cluster, request: Request) -> None:
    if not world.candidates.plans:
        return
    fresh = taught(world, *(value for _, value in LEARNED))
    assert said(request, fresh) == pytest.approx(predict(request, fresh).terms[TRANSFER], rel=1e-9, abs=1e-12)


@given(
    worlds,
    requests,
    st.tuples(
        st.floats(0.1, 50.0),
        st.floats(0.1, 10.0),
        st.floats(0.1, 10.0),
        st.floats(-0.1, 1.0),
        st.floats(0.0, 1e-4),
    ),
)
def test_what_links_have_shown_does_not_change_it(
    world: Cluster, request: Request, figures: tuple[float, ...]
) -> None:
    if not world.candidates.plans:
        return
    assert said(request, taught(world, *figures)) == said(request, taught(world, 1.0, 1.0, 1.0, 0.0, 0.0))


def test_a_decision_tells_it_beside_what_was_learned() -> None:
    world = taught(cluster(trio()), 3.0, 2.0, 1.0, 0.1, 0.0)
    fresh = predict(ask(), taught(world, 1.0, 1.0, 1.0, 0.0, 0.0))
    split = base.make("always_split").decide(ask(), world)
    row = world.candidates.plans.index(split.plan)
    assert split.costs.catalogue_transfer_s == pytest.approx(fresh.terms[TRANSFER, row], rel=1e-9)
    assert split.costs.catalogue_transfer_s < split.costs.transfer_s.p50
    alone = base.make("always_colocated").decide(ask(), world)
    assert alone.costs.catalogue_transfer_s == 0.0


def test_nothing_of_it_is_worked_out_before_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "kvferry.policy.corrected.catalogue_transfer_s", lambda *given: asked.append(given) or 0.25
    )
    decision = base.make("always_split").decide(ask(), cluster(trio()))
    assert decision.costs.transfer_s.p50 > 0.0
    assert not asked
    assert decision.costs.catalogue_transfer_s == 0.25
    assert decision.costs.features
    assert len(asked) == 1
