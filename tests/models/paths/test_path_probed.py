"""What is kept of a probe: as a path class, by the hosts' names, and as a file for `kvferry serve`."""

from dataclasses import replace

import pytest

from kvferry.models.link_catalogue import default_path_class, load_links, load_rules
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.override import toml_of
from kvferry.models.paths.probed import Probed, by_hosts, link_of, toml_of_probed
from kvferry.models.toml_file import ConfigError
from kvferry.policy.link import Evidence

LINKS = load_links()
CURVE = Curve(80e-6, 1 / 2.2e9, 3e-6)


def probed(curve=CURVE, claimed="tcp_25g", met=True, src=("cpu-2", "10.0.0.2"), dst=("cpu-5",), seen_s=5.0):
    fitted = Fit(curve, 0.05, 0.2, 1.0, 90)
    return Probed(src, dst, "mooncake", fitted, claimed, met, "as said", 1e-10, 4e-3, 5.0, seen_s)


def test_a_link_by_a_probe_has_its_figures_and_keeps_what_it_cannot_tell():
    found = probed()
    link = link_of(found.path_class(LINKS["tcp_25g"]), "cpu-2", "cpu-5", "mooncake", 4)
    assert link.evidence is Evidence.PROBE
    assert link.path_class == found.name
    assert (link.alpha_s, link.gamma_s_per_descriptor) == (CURVE.alpha_s, CURVE.gamma_s)
    assert link.beta_bytes_per_s == pytest.approx(2.2e9)
    assert link.beta_low_bytes_per_s == pytest.approx(0.95 * 2.2e9)
    assert (link.registration_s_per_byte, link.first_contact_s) == (1e-10, 4e-3)
    assert link.handoff_s == LINKS["tcp_25g"].handoff_s
    assert link_of(LINKS["tcp_25g"], "a", "b", "nixl", 1).evidence is Evidence.CATALOGUE


@pytest.mark.parametrize("curve", [replace(CURVE, alpha_s=1e-3), replace(CURVE, s_per_byte=1e-9)])
def test_other_figures_are_another_class(curve):
    assert probed(curve).name != probed().name
    assert probed(seen_s=99.0).name == probed().name


def test_only_what_is_as_it_claims_grows_with_its_nics():
    base, fast = LINKS["ib_ndr400_gdr_per_nic"], Curve(5e-6, 1 / 46e9, 1e-6)

    def beta(found):
        return link_of(found.path_class(base), "a", "b", "mooncake", 4).beta_bytes_per_s

    assert beta(probed(fast, base.name)) == pytest.approx(4 * 46e9)
    assert beta(probed(CURVE, base.name, met=False)) == pytest.approx(2.2e9)
    striped = replace(fast, s_per_byte=1 / 180e9)  # the library had all NICs for one move
    assert beta(probed(striped, base.name)) == pytest.approx(180e9)


def test_hosts_are_found_by_each_name_and_the_latest_counts():
    old, new = probed(), probed(seen_s=9.0)
    found = by_hosts([new, old])
    assert found["cpu-2", "cpu-5", "mooncake"] is found["10.0.0.2", "cpu-5", "mooncake"] is new
    assert ("cpu-5", "cpu-2", "mooncake") not in found


def test_a_file_binds_each_class_to_its_pair(tmp_path):
    slow = probed(replace(CURVE, s_per_byte=1 / 0.3e9), met=False, src=("cpu-5",), dst=("cpu-2", "10.0.0.2"))
    file = tmp_path / "paths.toml"
    file.write_text(toml_of_probed([probed(), slow], LINKS))
    links, rules = load_links(file), load_rules(file)

    def taken(src, dst, transport="mooncake"):
        return default_path_class(links, rules, transport, False, src_host=src, dst_host=dst)

    assert taken("cpu-2", "cpu-5").name == taken("10.0.0.2", "cpu-5").name == probed().name
    assert taken("cpu-5", "10.0.0.2").beta_bytes_per_s == pytest.approx(0.3e9)
    for other in (taken("cpu-2", "cpu-7"), taken("cpu-7", "cpu-5"), taken("cpu-2", "cpu-5", "nixl")):
        assert other == taken("", "")
    assert link_of(taken("cpu-2", "cpu-5"), "cpu-2", "cpu-5", "mooncake", 1).evidence is Evidence.PROBE


@pytest.mark.parametrize("key", ["src_host", "dst_host"])
def test_hosts_of_a_rule_are_a_list(tmp_path, key):
    file = tmp_path / "links.toml"
    file.write_text(f'{toml_of([])}[[rule]]\npath = "tcp_25g"\n{key} = "cpu-2"\n')
    with pytest.raises(ConfigError, match=f"{key} = 'cpu-2' is not a list"):
        load_rules(file)
