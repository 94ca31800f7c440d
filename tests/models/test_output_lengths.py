"""Lengths by tenant and family: drawn towards what contains them, bounded, and summed over routers."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models import lengths_told, output_lengths
from kvferry.models.output_lengths import OutputLengths
from kvferry.models.output_tokens import PRIOR_TOKENS

Answer = tuple[str, str, int, bool]
ANSWERS = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b"]), st.sampled_from(["", "f", "g"]), st.integers(1, 9000), st.booleans()
    ),
    max_size=60,
)


def seen(answers: list[Answer], into: OutputLengths | None = None) -> OutputLengths:
    lengths = into or OutputLengths()
    for tenant, family, tokens, cut in answers:
        lengths.observe("m", tokens, cut=cut, tenant=tenant, family=family)
    return lengths


def test_a_tenant_with_short_answers_is_expected_to_have_short_ones_and_another_is_not() -> None:
    rng = random.Random(5)
    lengths = OutputLengths()
    for _ in range(150):
        lengths.observe("m", rng.randint(8, 24), tenant="brief")
        lengths.observe("m", rng.randint(900, 1500), tenant="wordy")
    (brief, brief_p90), (wordy, wordy_p90) = (lengths.expect("m", 4000, name) for name in ("brief", "wordy"))
    assert brief < 25.0
    assert brief_p90 < 40.0
    assert 800.0 < wordy < 1600.0
    assert wordy_p90 > 1100.0
    assert 25.0 < lengths.expect("m", 4000)[0] < 1600.0
    assert lengths.expect("m", 4000, "unknown") == lengths.expect("m", 4000)
    assert lengths.expect("other", 4000) == (PRIOR_TOKENS, 4000.0)


def test_a_family_says_more_than_its_tenant() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.observe("m", 10, tenant="t", family="labels")
        lengths.observe("m", 1000, tenant="t", family="essays")
    assert lengths.expect("m", 4000, "t", "labels")[0] < 20.0
    assert lengths.expect("m", 4000, "t", "essays")[0] > 700.0
    assert lengths.expect("m", 64, "t", "essays")[0] > 60.0
    assert 20.0 < lengths.expect("m", 4000, "t")[0] < 700.0


@pytest.mark.parametrize("answers", [1, 3, 10, 60])
def test_few_answers_leave_a_tenant_near_its_model(answers: int) -> None:
    lengths = seen([("many", "", 1000, False)] * 300)
    of_model = lengths.expect("m", 4000)[0]
    seen([("few", "", 10, False)] * answers, lengths)
    now = lengths.expect("m", 4000, "few")[0]
    assert 10.0 < now < of_model
    assert (now > of_model / 4.0) == (answers <= 3)


def test_answers_cut_by_max_tokens_are_not_short_ones() -> None:
    cut = seen([("t", "f", 64, True)] * 100)
    whole = seen([("t", "f", 64, False)] * 100)
    assert whole.expect("m", 4000, "t", "f")[0] < 80.0
    assert cut.expect("m", 4000, "t", "f")[0] > 250.0
    assert cut.expect("m", 64, "t", "f") == pytest.approx((64.0, 64.0))


@given(
    ANSWERS,
    st.one_of(st.none(), st.integers(0, 10**7)),
    st.sampled_from(["", "a", "b", "c"]),
    st.sampled_from(["", "f"]),
)
def test_the_limit_holds_at_every_level(
    answers: list[Answer], limit: int | None, tenant: str, family: str
) -> None:
    mean, p90 = seen(answers).expect("m", limit, tenant, family)
    most = max(1.0, 4096.0 if limit is None else float(min(limit, 10**6)))
    assert 1.0 <= mean <= p90 <= most


@given(ANSWERS, st.integers(1, 9000), st.integers(1, 9000))
def test_a_higher_limit_never_lowers_what_is_expected_of_a_family(
    answers: list[Answer], one: int, other: int
) -> None:
    lengths = seen(answers)
    low, high = (lengths.expect("m", limit(one, other), "a", "f") for limit in (min, max))
    assert low[0] <= high[0] + 1e-6
    assert low[1] <= high[1] + 1e-6


@given(ANSWERS, ANSWERS)
def test_routers_that_tell_each_other_expect_the_same(mine: list[Answer], theirs: list[Answer]) -> None:
    one, two = seen(mine), seen(theirs)
    told = one.snapshot(), two.snapshot()
    for _ in range(3):  # hearing it again changes nothing
        one.hear("two", told[1])
        two.hear("one", told[0])
    for tenant in ("", "a", "b"):
        assert one.expect("m", 4000, tenant) == pytest.approx(two.expect("m", 4000, tenant), rel=1e-4)
        whole = seen(mine).answers("m", tenant) + seen(theirs).answers("m", tenant)
        assert one.answers("m", tenant) == pytest.approx(whole, rel=1e-4)
    assert (one.snapshot(), two.snapshot()) == told  # only own answers are told on


@given(ANSWERS)
def test_a_restart_forgets_nothing(answers: list[Answer]) -> None:
    before, after = seen(answers), OutputLengths()
    after.restore(before.snapshot())
    for tenant in ("", "a"):
        for family in ("", "f"):
            assert after.expect("m", 4000, tenant, family) == pytest.approx(
                before.expect("m", 4000, tenant, family), rel=1e-3
            )


def test_what_was_learned_before_a_restart_is_older_than_what_was_learned_since() -> None:
    before = seen([("t", "", 1000, False)] * 500).snapshot()
    after = seen([("t", "", 10, False)] * 300)
    after.restore(before)
    assert after.answers("m", "t") <= 100.0
    assert after.expect("m", 4000, "t")[0] < 100.0
    OutputLengths().hear("x", after.snapshot())  # and others still understand it


def test_another_routers_answers_fade_until_they_are_forgotten() -> None:
    lengths = OutputLengths()
    lengths.hear("x", seen([("t", "", 10, False)] * 50).snapshot())
    full = lengths.answers("m", "t")
    lengths.weigh("x", 0.5)
    assert lengths.answers("m", "t") == pytest.approx(full / 2.0)
    lengths.weigh("x", 0.0)
    assert lengths.answers("m", "t") == 0.0
    assert lengths.expect("m", 4000, "t") == (PRIOR_TOKENS, 4000.0)


def test_prompts_that_share_nothing_do_not_push_out_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lengths, "MOST_FAMILIES", 8)
    monkeypatch.setattr(output_lengths, "MOST_TENANTS", 8)
    monkeypatch.setattr(output_lengths, "MOST_NEW", 32)
    lengths = seen([("t", "shared", 10, False)] * 30)
    for n in range(500):
        lengths.observe("m", 2000, tenant="t", family=f"alone-{n}")
    assert lengths.answers("m", "t", "shared") > 20.0
    for n in range(50):
        seen([(f"t{n}", f"twice-{n}", 10, False)] * 2, lengths)
    assert lengths.answers("m", "t", "shared") == 0.0
    assert sum(len(level) for level in lengths._levels) <= 1 + 8 + 8
    assert len(lengths._new) <= 32


def test_what_is_told_stays_small() -> None:
    rng = random.Random(1)
    lengths = OutputLengths()
    for n in range(1000):
        for _ in range(12):
            lengths.observe("m", rng.lognormvariate(5, 2) + 1, tenant=f"t{n}", family=f"f{n}")
    told = lengths.snapshot()
    assert 100_000 < len(told) < 256 * 1024
    other = OutputLengths()
    other.hear("x", told)
    assert other.answers("m", "t999", "f999") > 5.0


def garbled(**changed: object) -> bytes:
    message = json.loads(seen([("t", "", 10, False)]).snapshot())
    return json.dumps({**message, **changed}).encode()


BIN = [13, 1.0, 0.0, 10.0]


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\x80\x04K\x01.",
        b"[" * 100_000,
        b"null",
        garbled(schema="kvferry.lengths.v2"),
        garbled(places=None),
        garbled(places=[[["m", "", ""], [[99, 1.0, 0.0, 10.0]]]]),
        garbled(places=[[["m", "", ""], [[13, -1.0, 0.0, 10.0]]]]),
        garbled(places=[[["m", "", ""], [[13, 0.0, 0.0, 10.0]]]]),
        garbled(places=[[["m", "", ""], [[13, 1e300, 0.0, 10.0]]]]),
        garbled(places=[[["m", "", ""], [[13, 1.0, 0.0, float("nan")]]]]),
        garbled(places=[[["m", "", ""], [[13, 1.0, 0.0, 1e9]]]]),
        garbled(places=[[["m" * 1000, "", ""], [BIN]]]),
        garbled(places=[[["m", "", ""], [BIN] * 100]]),
        garbled(places=[[["m", "", ""], [BIN]]] * (lengths_told.MOST_PLACES + 1)),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(told: bytes) -> None:
    lengths = seen([("t", "", 50, False)] * 5)
    lengths.hear("x", seen([("t", "", 10, False)] * 5).snapshot())
    before = lengths.expect("m", 4000, "t")
    for read in (lambda: lengths.hear("x", told), lambda: lengths.restore(told)):
        with pytest.raises(ValueError, match="no lengths of answers"):
            read()
    assert lengths.expect("m", 4000, "t") == before


@given(st.binary(max_size=200))
def test_no_bytes_break_it(told: bytes) -> None:
    with pytest.raises(ValueError, match="no lengths of answers"):
        OutputLengths().hear("x", told)
