import dataclasses

import pytest

from kvferry.models.link_catalogue import load_links
from kvferry.models.paths.change import changed
from kvferry.models.paths.checks import LINE, NVLINK, PEER, PIECES, RDMA, SHAPER
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import fit
from kvferry.models.paths.judge import judge, meets
from kvferry.models.paths.report import PathReport, report
from kvferry.models.paths.words import share
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
    assert found.checks == (PIECES,)
    assert "30 us a descriptor" in found.verdict


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
