import dataclasses
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.link_catalogue import KINDS, SCOPES, load_links
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import Fit, fit
from kvferry.models.paths.override import measured, toml_of
from kvferry.policy.link import PathClass

text = st.text(st.characters(exclude_categories=["Cs"]))
figure = st.one_of(st.just(0.0), st.floats(1e-12, 1e6))
beta = st.floats(1e3, 1e15)
classes = st.builds(
    PathClass, text.filter(bool), figure, beta, beta, beta, figure, figure, figure, figure, text, text,
    st.sampled_from(KINDS), st.sampled_from(SCOPES),
)  # fmt: skip


def same(a: PathClass, b: PathClass) -> bool:
    pairs = zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True)
    return all(x == y if isinstance(x, str) else math.isclose(x, y, rel_tol=1e-14) for x, y in pairs)


@given(st.lists(classes, max_size=3, unique_by=lambda path: path.name))
def test_what_is_written_is_read_again(tmp_path_factory, paths):
    file = tmp_path_factory.mktemp("paths") / "paths.toml"
    file.write_bytes(toml_of(paths).encode())
    links = load_links(file)
    assert all(same(links[path.name], path) for path in paths)


@given(text)
def test_any_text_is_quoted(name):
    path = dataclasses.replace(load_links()["tcp_25g"], name=name, source=name)
    read = tomllib.loads(toml_of([path]))["path"][0]
    assert read["name"] == read["source"] == name


@pytest.mark.parametrize("bad", [{"alpha_s": math.inf}, {"alpha_s": math.nan}, {"name": "\ud800"}])
def test_what_toml_cannot_hold_is_refused(bad):
    with pytest.raises(ValueError, match=r"not a figure|surrogates"):
        toml_of([dataclasses.replace(load_links()["tcp_25g"], **bad)])


def test_a_fit_overrides_its_class_and_leaves_the_rest(moves, tmp_path):
    links = load_links()
    fitted = fit(moves.over(moves.line(70, 0.8, 6)))
    path = measured(links["tcp_25g"], fitted, "kvferry probe", first_contact_s=3e-3)
    file = tmp_path / "paths.toml"
    file.write_text(toml_of([path]))
    read = load_links(file)
    assert same(read["tcp_25g"], path)
    assert read["tcp_25g"].beta_bytes_per_s == pytest.approx(1.25e9, rel=0.1)
    assert read["tcp_25g"].first_contact_s == pytest.approx(3e-3)
    assert read["tcp_25g"].handoff_s == pytest.approx(links["tcp_25g"].handoff_s)
    assert read["tcp_100g"] == links["tcp_100g"]
    assert path.beta_low_bytes_per_s < path.beta_bytes_per_s < path.beta_high_bytes_per_s


def test_two_regimes_bound_the_bandwidth():
    curve = Curve(16e-6, 0.081e-9, 3e-6, 2e7, 5e-3, 0.257e-9, 12e-6)
    path = measured(
        load_links()["shared_memory_cma"], Fit(curve, 0.05, 0.2, None, 90), "probe", "cpu-1 to cpu-1"
    )
    assert path.name == "cpu-1 to cpu-1"
    assert path.beta_bytes_per_s == pytest.approx(1 / 0.257e-9)
    assert path.beta_low_bytes_per_s == pytest.approx(0.95 / 0.257e-9)
    assert path.beta_high_bytes_per_s == pytest.approx(1.05 / 0.081e-9)
    assert path.gamma_s_per_descriptor == pytest.approx(15e-6)
