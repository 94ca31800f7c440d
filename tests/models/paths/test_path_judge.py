import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.link_catalogue import load_links
from kvferry.models.paths.change import changed
from kvferry.models.paths.checks import COPIES, FEW_PIECES, LINE, NVLINK, PEER, RDMA, SHAPER
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import fit
from kvferry.models.paths.judge import judge, meets
from kvferry.models.paths.report import PathReport, report
from kvferry.models.paths.words import share, size
from kvferry.models.toml_file import UnknownNameError

LINKS = load_links()
NDR = "ib_ndr400_gdr_per_nic"


def curve(alpha_us: float, gb_s: float, gamma_us: float) -> Curve:
    return Curve(alpha_us * 1e-6, 1.0 / (gb_s * 1e9), gamma_us * 1e-6)


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("units", [1, 4])
def test_every_class_names_itself_when_given_its_own_figures(name, units):
    found = judge(Curve.of(LINKS[name], units), name, LINKS, units=units)
    assert found.met
    assert found.looks_like == name
    assert found.verdict == f"as {name}"
    assert not found.checks


@pytest.mark.parametrize("name", LINKS)
def test_every_class_is_known_from_noisy_moves_over_it(moves, name):
    path = LINKS[name]
    line = (path.alpha_s * 1e6, 1e9 / path.beta_bytes_per_s, path.gamma_s_per_descriptor * 1e6)
    cells = [(256 * 2**20 * n, pieces) for n in (1, 4) for pieces in (1, 64)]
    found = fit(moves.over(moves.line(*line), seed=4, noise=0.03, odd=0.03, cells=[*moves.cells, *cells]))
    assert meets(found.curve, name, LINKS)


@pytest.mark.parametrize("name", LINKS)
def test_no_class_is_met_at_a_third_of_its_lowest_rate(name):
    path = LINKS[name]
    slow = Curve(path.alpha_s, 3.0 / path.beta_low_bytes_per_s, path.gamma_s_per_descriptor)
    found = judge(slow, name, LINKS)
    assert not found.met
    assert found.checks
    assert f"of {name}" in found.verdict


def test_rdma_that_falls_to_tcp_is_called_so():
    found = judge(curve(100, 4.9, 5), NDR, LINKS, same_host=False)
    assert found.verdict.startswith(f"4.9 GB/s, an eighth of {NDR}; looks like tcp or host staging")
    assert found.looks_like == "tcp_400g_multi_stream_per_nic"
    assert found.checks[0] == RDMA
    assert PEER in found.checks


def test_rdma_that_bounces_through_the_host_is_called_so():
    found = judge(curve(60, 17, 1), NDR, LINKS, same_host=False)
    assert "looks like host staging" in found.verdict
    assert found.checks[0] == PEER


def test_half_the_line_is_first_looked_for_in_the_line():
    found = judge(curve(20, 20.5, 0.8), NDR, LINKS, same_host=False)
    assert f"half of {NDR}; looks like ib_hdr200_gdr_per_nic" in found.verdict
    assert found.checks[0] == LINE


def test_nvlink_that_is_not_up():
    found = judge(curve(12, 40, 10), "nvlink4_h100_h200_p2p", LINKS, same_host=True)
    assert found.looks_like == "pcie5_x16_p2p"
    assert found.checks[0] == NVLINK


def test_the_shared_memory_of_this_machine_taken_over_tcp():
    found = judge(curve(51, 1.7, 24.7), "shared_memory_cma", LINKS, same_host=True)
    assert not found.met
    assert found.looks_like == "loopback_tcp_mooncake"


def test_dear_descriptors_alone_fail_it():
    found = judge(curve(25, 40, 30), NDR, LINKS)
    assert not found.met
    assert found.checks == (FEW_PIECES,)
    assert found.short == ("pieces",)
    assert "30 us a piece" in found.verdict


@pytest.mark.parametrize("gamma_us", [24.7, 30, 60])
@pytest.mark.parametrize("name", ["tcp_100g", "tcp_25g", "tcp_400g_multi_stream_per_nic"])
def test_what_mooncake_takes_for_a_piece_over_tcp_is_no_fault(name, gamma_us):
    assert judge(curve(60, 2.4, gamma_us), name, LINKS).met
    assert meets(curve(60, 2.4, gamma_us), name, LINKS)
    assert not meets(curve(60, 2.4, 10 * gamma_us), name, LINKS)


def test_rdma_is_not_excused_by_what_tcp_takes_for_a_piece():
    assert not judge(curve(25, 40, 24.7), NDR, LINKS).met


@pytest.mark.parametrize(
    ("gb_s", "verdict"),
    [
        (0.58, "a tenth of tcp_100g, within what was seen of it (0.5 to 10 GB/s)"),
        (0.46, "1/13 of tcp_100g, hardly below what was seen of it (0.5 to 10 GB/s)"),
        (4.0, "two thirds of tcp_100g, within what was seen of it (0.5 to 10 GB/s)"),
        (4.5, "as tcp_100g"),
        (11, "as tcp_100g"),
        (13, "2.2 times tcp_100g, faster than was seen of it (0.5 to 10 GB/s)"),
    ],
)
def test_a_path_that_is_met_says_its_share_where_it_is_clearly_less(gb_s, verdict):
    found = judge(curve(100, gb_s, 25), "tcp_100g", LINKS, same_host=False)
    assert (found.met, found.verdict, found.checks) == (True, verdict, ())
    assert found.telling == (gb_s < 4.2)


def test_what_is_seen_of_a_class_grows_with_its_units():
    found = judge(Curve(20e-6, 1 / 100e9, 1e-7), "roce400_gdr_per_nic", LINKS, units=4)
    assert "within what was seen of it (96 to 196 GB/s)" in found.verdict


@pytest.mark.parametrize("gb_s", [2.9, 4.5, 9.0])
def test_a_fast_path_has_nothing_to_do(gb_s):
    found = judge(curve(51, gb_s, 24.7), "loopback_tcp_mooncake", LINKS, same_host=True)
    assert found.met
    assert found.checks == ()
    assert found.verdict.endswith("times loopback_tcp_mooncake, faster than was seen of it (1.1 to 2.1 GB/s)")


def test_a_slow_path_does_not_look_like_what_is_typically_far_faster():
    told = judge(curve(80, 1.9, 5), NDR, LINKS, same_host=False)
    assert "looks like tcp (nearest: tcp_25g)" in told.verdict
    told = judge(curve(80, 0.56, 5), NDR, LINKS, same_host=False)
    assert "looks like tcp; check: " in told.verdict  # its slowest was seen, typical of no class


@given(
    st.sampled_from(sorted(LINKS)), st.floats(5, 2000), st.floats(0.01, 900), st.floats(0.1, 200),
    st.sampled_from([None, True, False]),
)  # fmt: skip
def test_a_class_that_is_named_holds_the_rate(name, alpha_us, gb_s, gamma_us, same_host):
    found = judge(curve(alpha_us, gb_s, gamma_us), name, LINKS, same_host)
    assert found.met == (not found.short)
    assert bool(found.checks) == ("check: " in found.verdict)
    said = found.verdict.partition("looks like ")[2].partition("; ")[0]
    for other in LINKS.values():
        if re.search(rf"\b{other.name}\b", said):
            assert other.beta_bytes_per_s <= 2.01 * gb_s * 1e9
            assert other.beta_low_bytes_per_s * 0.79 <= gb_s * 1e9 <= 1.26 * other.beta_high_bytes_per_s


@given(st.sampled_from(sorted(LINKS)), st.floats(0.01, 900), st.floats(1.0, 10.0))
def test_no_path_falls_short_by_being_faster(name, gb_s, times):
    path = LINKS[name]
    slower, faster = (
        judge(Curve(path.alpha_s, 1e-9 / rate, path.gamma_s_per_descriptor), name, LINKS)
        for rate in (gb_s, gb_s * times)
    )
    assert faster.met or not slower.met


def test_loopback_has_no_line_to_look_at():
    found = judge(curve(51, 0.3, 24.7), "loopback_tcp_mooncake", LINKS, same_host=True)
    assert found.checks[0] == COPIES
    assert LINE not in found.checks


def test_a_late_start_alone_fails_it():
    found = judge(curve(900, 40, 1), NDR, LINKS)
    assert not found.met
    assert "starts after 900 us" in found.verdict


def test_faster_than_the_class_can_be_is_met_and_said():
    found = judge(curve(50, 40, 5), "tcp_25g", LINKS)
    assert found.met
    assert found.verdict.startswith("40 GB/s, 16.7 times tcp_25g")
    assert found.checks


def test_on_two_hosts_nothing_looks_like_one():
    found = judge(curve(14, 11.7, 3.7), NDR, LINKS, same_host=False)
    assert LINKS[found.looks_like].kind not in ("shared_memory", "pcie")
    assert judge(curve(14, 11.7, 3.7), NDR, LINKS, same_host=True).looks_like == "shared_memory_cma"


def test_a_shaper_is_suspected_where_the_first_bytes_are_fast():
    shaped = Curve(50e-6, 1e-10, 5e-6, 5e6, 0.0, 8e-9, 0.0)
    assert judge(shaped, "tcp_25g", LINKS).checks[0] == SHAPER


def test_an_unknown_class_is_named_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=f"'rdma'.*{NDR}"):
        meets(curve(1, 1, 1), "rdma", LINKS)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.05, "the rate of"), (0.88, "88% of"), (0.5, "half of"), (0.12, "an eighth of"),
        (0.1, "a tenth of"), (0.025, "1/40 of"), (1.6, "1.6 times"),
    ],
)  # fmt: skip
def test_a_ratio_in_words(ratio, words):
    assert share(ratio) == words


def test_the_report_has_the_fields_of_the_contract(moves):
    fitted = fit(moves.over(moves.line(51, 0.581, 24.7)))
    judgement = judge(fitted.curve, "loopback_tcp_mooncake", LINKS)
    drop = changed(curve(51, 17, 24.7), fitted.curve)
    told = report("cpu-2", "cpu-5", "mooncake", fitted, judgement, 15e-3, 1.7e-3, drop)
    fields = "src dst transport alpha_us beta_gb_s gamma_us registration_us first_contact_ms fit_error"
    named = [field.name for field in dataclasses.fields(PathReport)]
    assert named == [*fields.split(), "claimed_class", "verdict"]
    assert told.registration_us == pytest.approx(15000)
    assert told.first_contact_ms == pytest.approx(1.7)
    assert told.beta_gb_s == pytest.approx(1.7, rel=0.1)
    assert told.line.startswith("cpu-2 to cpu-5 over mooncake: as loopback_tcp_mooncake; ")
    assert "times slower than before" in told.line


def test_a_poor_fit_is_said(moves):
    fitted = dataclasses.replace(fit(moves.over(moves.line(18, 0.386, 9.3))), median_error=0.39)
    assert (
        "the fit errs 39%" in report("a", "b", "nixl", fitted, judge(fitted.curve, "tcp_100g", LINKS)).verdict
    )


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        (Curve(50e-6, 1 / 9e9, 0.0, 4 * 2**20, 0.0, 1 / 1.2e9),
         ["the first 4 MiB of a move go at 9 GB/s (a shaper's burst or a cache), the rest at 1.2 GB/s"]),
        (Curve(50e-6, 1 / 0.5e9, 0.0, 4 * 2**20, 0.0, 1 / 1.2e9),
         ["the first 4 MiB of a move go at 0.5 GB/s, the rest at 1.2 GB/s"]),
        (Curve(50e-6, 0.0, 0.0, 2**20, 0.0, 1 / 1.2e9),
         ["the first 1 MiB of a move go at once (a shaper's burst or a cache), the rest at 1.2 GB/s"]),
        (Curve(16e-6, 0.081e-9, 3e-6, 23 * 2**20, 5.9e-3, 0.257e-9, 12e-6),
         ["the first 23 MiB of a move go at 12 GB/s (a shaper's burst or a cache), the rest at 3.9 GB/s",
          "moves above 23 MiB take 5900 us more"]),
        (Curve(50e-6, 1 / 9e9, 0.0, 66 * 1024, 0.0, 1 / 1.2e9), []),  # no KV is that small
        (Curve(50e-6, 1 / 1.3e9, 0.0, 4 * 2**20, 1e-4, 1 / 1.2e9), []),  # no difference to speak of
        (Curve(50e-6, 1 / 1.3e9, 0.0), []),
    ],
)  # fmt: skip
def test_two_regimes_are_told_where_they_matter(moves, curve, words):
    fitted = dataclasses.replace(fit(moves.over(moves.line(51, 0.581, 24.7))), curve=curve)
    judgement = judge(curve, "tcp_100g", LINKS)
    told = report("a", "b", "nixl", fitted, judgement).verdict
    assert told == "; ".join([judgement.verdict, *words])


@pytest.mark.parametrize(
    ("count", "words"),
    [(67_600, "66 KiB"), (1023.7 * 1024, "1 MiB"), (23.4 * 2**20, "23 MiB"), (300 * 2**20, "300 MiB"),
     (2**31, "2 GiB"), (600, "0.59 KiB")],
)  # fmt: skip
def test_a_size_in_words(count, words):
    assert size(count) == words
