"""`kvferry probe`: what it says of measured paths, leaves for routers, and exits with."""

import asyncio
import contextlib
import dataclasses
import io
import itertools
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvferry.integrations.cli import probe_outputs, probe_run
from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import CommandError, run
from kvferry.integrations.cli.probe_claims import Claim, Claims
from kvferry.integrations.cli.probe_findings import Finding, Judge, to_keep
from kvferry.integrations.cli.probe_hosts import Host, agents_of, hosts_of
from kvferry.integrations.cli.probe_table import paths_table
from kvferry.integrations.probe.measured import Measured
from kvferry.integrations.probe.messages import Described
from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.redis.paths import PathBoard
from kvferry.models.link_catalogue import load_links, load_rules
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.judge import judge
from kvferry.models.paths.probed import Probed
from kvferry.models.paths.report import report
from kvferry.models.paths.sample import Sample

PEERS = "10.0.0.2:8600,10.0.0.5:8600"
FIELDS = {
    "src", "dst", "transport", "alpha_us", "beta_gb_s", "gamma_us", "registration_us", "first_contact_ms",
    "fit_error", "claimed_class", "verdict",
}  # fmt: skip


def samples(gb_s: float, rounds: int = 3, alpha_s: float = 60e-6, seed: int = 0) -> tuple[Sample, ...]:
    """Moves of 4 KiB to 128 MiB on a path of that bandwidth."""
    rng = np.random.default_rng(seed)
    return tuple(
        Sample(size, pieces, (alpha_s + size / (gb_s * 1e9) + 3e-6 * pieces) * float(rng.lognormal(0, 0.05)))
        for _ in range(rounds)
        for size in (4096 * 8**step for step in range(6))
        for pieces in (1, 16, 128)
        if size // pieces >= 256
    )


def described(name: str, host_id: str = "", gpus: tuple[str, ...] = ()) -> Described:
    return Described(name, host_id or name, 2, 2**30, gpus, (), {"mooncake": ""}, {})


class Cluster:
    """Agents that are not there: the moves of each path, and what was asked."""

    def __init__(self) -> None:
        self.agents: dict[str, Described | str] = {
            "10.0.0.2:8600": described("cpu-2"),
            "10.0.0.5:8600": described("cpu-5"),
        }
        self.moves: dict[str, tuple[Sample, ...]] = {"cpu-2": samples(2.2), "cpu-5": samples(2.2, seed=1)}
        self.errors: dict[str, str] = {}
        self.transports: tuple[str, ...] = ("mooncake",)
        self.asked: list[Any] = []
        self.rounds = 0
        self.told: list[Measured] = []
        self.ends_after: int | None = None
        self.end: BaseException = KeyboardInterrupt()

    async def describe(self, addresses: Any, token: str | None) -> Any:
        return agents_of({address: self.agents[address] for address in addresses})

    async def probe(self, addresses: Any, transports: Any, **options: Any) -> list[Measured]:
        self.asked.append((tuple(addresses), transports, options))
        self.rounds += 1
        names = {at: at if isinstance(one, str) else one.name for at, one in self.agents.items()}
        found = [
            Measured(
                names[src], names[dst], transport, self.moves.get(names[src], ()), 5e-4, 1e-10, 3e-3,
                self.errors.get(names[src]), src, dst,
            )
            for transport in self.transports
            for src in addresses
            for dst in addresses
            if src != dst
        ]  # fmt: skip
        for one in found[: self.ends_after]:
            self.told.append(one)
            options["done"](one)
        if self.ends_after is not None:
            raise self.end
        return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(probe_run, "described", found.describe)
    monkeypatch.setattr(probe_run, "probe", found.probe)
    monkeypatch.delenv("KVFERRY_REDIS", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return found


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    server = EmbeddedValkey()
    asyncio.run(server.start())
    yield server.url
    server.stop()


@pytest.fixture
def namespace(redis_url: str) -> str:
    return f"t{time.monotonic_ns()}"


def call(*words: str) -> int:
    return run(app, ["probe", "run", "--peers", PEERS, *words])


def stored(url: str, namespace: str) -> dict[Any, Probed]:
    async def read() -> list[Probed]:
        store = await open_store(url, namespace=namespace)
        try:
            return await PathBoard(store, print).read()
        finally:
            await store.close()

    return {one.key: one for one in asyncio.run(read())}


def test_a_path_that_is_what_it_claims(cluster: Cluster, capsys: Any) -> None:
    assert call("--claim", "tcp_25g") == 0
    out = capsys.readouterr().out
    assert "cpu-2 to cpu-5 over mooncake: 2.2 GB/s, as tcp_25g\n" in out
    assert max(map(len, out.splitlines())) <= 80
    row = next(
        line.split() for line in out.splitlines() if line.split()[:3] == ["cpu-5", "cpu-2", "mooncake"]
    )
    assert float(row[3]) == pytest.approx(2.2, rel=0.05)


def test_a_path_that_is_not_says_what_it_looks_like_and_what_to_check(cluster: Cluster, capsys: Any) -> None:
    cluster.moves["cpu-2"] = samples(4.9)
    assert call("--claim", "cpu-2,cpu-5=ib_ndr400_gdr_per_nic", "--claim", "tcp_25g") == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("cpu-2 to cpu-5 over mooncake: 4.")]
    assert re.search(r"an? (ninth|tenth|eighth) of ib_ndr400_gdr_per_nic; looks like .*tcp.*; check: ", line)
    assert "cpu-5 to cpu-2 over mooncake: 2.2 GB/s, as tcp_25g" in out


def test_by_default_a_path_claims_what_a_router_would_take_it_for(cluster: Cluster, capsys: Any) -> None:
    assert call("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["claimed_class"] for one in told["paths"]} == {"tcp_100g"}
    for one in told["paths"]:
        assert one.keys() >= FIELDS
        assert one["met"] is True
        assert one["verdict"] == "a third of tcp_100g, within what was seen of it (0.5 to 10 GB/s)"
        assert one["beta_gb_s"] == pytest.approx(2.2, rel=0.05)
        assert (one["registration_us"], one["first_contact_ms"]) == (pytest.approx(500), pytest.approx(3))


def test_expect_is_the_exit_code(cluster: Cluster, capsys: Any) -> None:
    assert call("--expect", "tcp_25g") == 0
    assert call("--expect", "pcie4_x16_p2p") == 1
    error = capsys.readouterr().err
    assert "2 of 2 paths do not meet pcie4_x16_p2p: cpu-2 to cpu-5 over mooncake, cpu-5 to cpu-2" in error
    cluster.moves["cpu-2"] = samples(20.0)  # faster is fine
    assert call("--expect", "tcp_25g") == 0


@pytest.mark.parametrize(
    ("words", "say"),
    [
        (["--expect", "warp"], "no path class 'warp'"),
        (["--claim", "warp"], "no path class 'warp'"),
        (["--claim", "a,b,c,d=tcp_25g"], "give CLASS, TRANSPORT=CLASS"),
        (["--claim", "a,=tcp_25g"], "give CLASS"),
        (["--peers", "10.0.0.2:8600"], "needs two agents"),
        (["--peers", "a:1,a:1"], "more than once: a:1"),
        (["--peers", "a:1,b:0"], "no agent's address"),
        (["--peers", "a:1,b:99999"], "no agent's address"),
        (["--peers", "a:1,http://b:2"], "no agent's address"),
        (["--peers", "a:1,u@b:2"], "no agent's address"),
        (["--transports", "carrier_pigeon"], "no transport 'carrier_pigeon'"),
        (["--budget", "0"], "more than 0"),
        (["--watch", "nan"], "more than 0"),
        (["--budget", "1e9"], "at most 3600"),
        (["--largest-mib", "0.01"], "give 1 to 1,048,576"),
        (["--largest-mib", "1e300"], "give 1 to 1,048,576"),
        (["--namespace", ""], "give a name"),
        (["--transports", "nixl,mooncake,nixl"], "more than once: nixl"),
        (["--peers", "a:1,::1:8600"], "as [::1]:8600"),
        (["--claim", "rdma=tcp_25g"], "no transport 'rdma': there are local, mooncake, nixl"),
        (["--claim", "cpu-2,cpu-5,rdma=tcp_25g"], "no transport 'rdma'"),
        (["--claim", "mooncake,nixl=tcp_25g"], "are transports: a --claim for each"),
        (
            ["--claim", "cpu-2,cpu-9=tcp_25g", "--claim", "x,y=tcp_25g"],
            "'cpu-2,cpu-9=tcp_25g', 'x,y=tcp_25g'",
        ),
        (["--claim", "cpu-2,nixl=tcp_25g"], "hosts are cpu-2 (10.0.0.2:8600), cpu-5 (10.0.0.5:8600)"),
        (["--claim", "local=tcp_25g"], "no path for 'local=tcp_25g'"),
        (["--claim", "nixl=tcp_25g", "--transports", "mooncake"], "no path for 'nixl=tcp_25g'"),
        (["--plot", "paths.docx"], "ends in .png"),
        (["--plot", "paths"], "ends in .png"),
    ],
)
def test_wrong_usage(cluster: Cluster, capsys: Any, words: list[str], say: str) -> None:
    assert call(*words) == 2
    assert say in capsys.readouterr().err
    assert not cluster.asked


@pytest.mark.parametrize(
    "words",
    [
        ["--toml", "{}/none/paths.toml"],
        ["--config", "{}/none.toml"],
        ["--redis", "redis://127.0.0.1:1"],
        ["--plot", "{}/none/paths.png"],
    ],
)
def test_what_cannot_be_used_is_said_before_an_hour_is_measured(
    cluster: Cluster, capsys: Any, tmp_path: Path, words: list[str]
) -> None:
    assert call(*(word.format(tmp_path) for word in words)) == 1
    assert capsys.readouterr().err.startswith("kvferry: ")
    assert not cluster.asked


def test_a_file_that_no_probe_wrote_is_not_overwritten(cluster: Cluster, capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "links.toml"
    file.write_text("# mine\n")
    assert call("--toml", str(file)) == 1
    assert "was not written by a probe" in capsys.readouterr().err
    assert file.read_text() == "# mine\n"


def test_a_path_without_figures_fails_and_the_others_are_told(
    cluster: Cluster, capsys: Any, redis_url: str, namespace: str
) -> None:
    cluster.moves["cpu-5"], cluster.errors["cpu-5"] = (), "10.0.0.5:8600 does not answer"
    assert call("--claim", "tcp_25g", "--redis", redis_url, "--namespace", namespace) == 1
    told = capsys.readouterr()
    assert "cpu-5 to cpu-2 over mooncake: not measured: 10.0.0.5:8600 does not answer" in told.out
    assert "cpu-2 to cpu-5 over mooncake: 2.2 GB/s, as tcp_25g" in told.out
    assert "1 of 2 paths were not measured to the end: cpu-5 to cpu-2 over mooncake" in told.err
    assert list(stored(redis_url, namespace)) == [("cpu-2", "cpu-5", "mooncake")]
    assert call("--json", "--expect", "tcp_25g") == 1
    one, other = json.loads(capsys.readouterr().out)["paths"]
    assert (one["error"], one["expected"]) == (None, True)
    assert (other["error"], other["expected"]) == ("10.0.0.5:8600 does not answer", False)


def test_a_path_that_failed_on_the_way_is_told_with_what_was_measured(cluster: Cluster, capsys: Any) -> None:
    cluster.errors["cpu-5"] = "the peer is gone"
    assert call("--claim", "tcp_25g") == 1
    out = capsys.readouterr().out
    assert "cpu-5 to cpu-2 over mooncake: 2.2 GB/s, as tcp_25g; not all was measured: the peer is gone" in out


def test_too_few_moves_are_no_figures(cluster: Cluster, capsys: Any) -> None:
    cluster.moves["cpu-5"] = samples(2.2)[:3]
    assert call("--claim", "tcp_25g") == 1
    assert "cpu-5 to cpu-2 over mooncake: not measured: 3 different moves" in capsys.readouterr().out


def test_a_rate_that_drops_on_the_way_is_judged_as_it_is_now(cluster: Cluster, capsys: Any) -> None:
    before = samples(2.2)
    cluster.moves["cpu-2"] = before + samples(0.22, seed=3)
    assert call("--claim", "tcp_25g") == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("cpu-2 to cpu-5 over mooncake: 0.2")]
    assert re.search("(a ninth|a tenth|1/11) of tcp_25g", line)
    since = re.search(r"(?:9.\d|1\d) times slower than before .*, since move (\d+) of (\d+)", line)
    assert since is not None
    assert abs(int(since[1]) - len(before)) < len(before) / 3


def test_what_changed_since_the_last_probe_is_said(
    cluster: Cluster, capsys: Any, redis_url: str, namespace: str
) -> None:
    words = ("--claim", "tcp_25g", "--redis", redis_url, "--namespace", namespace)
    assert call(*words) == 0
    first = stored(redis_url, namespace)
    assert {one.name: one.claimed_class for one in first.values()}.keys() == {
        one.name for one in first.values()
    }
    cluster.moves = {"cpu-2": samples(2.1, seed=8), "cpu-5": samples(0.22, seed=9)}
    capsys.readouterr()
    assert call(*words) == 0
    out = capsys.readouterr().out
    assert "as tcp_25g\n" in out
    assert re.search(r"cpu-5 to cpu-2 over mooncake: 0.2\d GB/s.*(9.\d|1\d) times slower than before", out)
    second = stored(redis_url, namespace)
    same, other = ("cpu-2", "cpu-5", "mooncake"), ("cpu-5", "cpu-2", "mooncake")
    # what routers learned on top of figures that still hold is not to be lost
    assert second[same].fitted == first[same].fitted
    assert second[same].measured_s == first[same].measured_s < second[same].seen_s
    assert second[other].fitted.curve.beta_bytes_per_s == pytest.approx(0.22e9, rel=0.05)
    assert (second[other].met, second[other].name != first[other].name) == (False, True)


def test_without_a_store_the_file_of_the_last_probe_says_what_was(
    cluster: Cluster, capsys: Any, tmp_path: Path
) -> None:
    file = tmp_path / "paths.toml"
    assert call("--claim", "tcp_25g", "--toml", str(file)) == 0
    links, rules = load_links(file), load_rules(file)
    bound = [rule for rule in rules if rule.names_hosts]
    assert {(rule.src_host, rule.dst_host) for rule in bound} == {
        (("cpu-2", "10.0.0.2"), ("cpu-5", "10.0.0.5")),
        (("cpu-5", "10.0.0.5"), ("cpu-2", "10.0.0.2")),
    }
    assert links[bound[0].path].beta_bytes_per_s == pytest.approx(2.2e9, rel=0.05)
    cluster.moves["cpu-5"] = samples(0.22)
    capsys.readouterr()
    # what a probe wrote is no claim, even where routers are started with it
    assert call("--config", str(file), "--toml", str(file)) == 0
    out = capsys.readouterr().out
    assert re.search(r"0.2\d GB/s, 1/\d\d of tcp_100g; ", out)
    assert len(re.findall(r"(?:9.\d|1\d) times slower than before", out)) == 1


def test_a_watch_tells_only_what_is_another(cluster: Cluster, capsys: Any, monkeypatch: Any) -> None:
    probe = cluster.probe

    async def probed(*args: Any, **options: Any) -> list[Measured]:
        if cluster.rounds == 2:
            cluster.moves["cpu-5"] = samples(0.22)
        if cluster.rounds == 4:
            raise KeyboardInterrupt
        return await probe(*args, **options)

    monkeypatch.setattr(probe_run, "probe", probed)
    assert call("--claim", "tcp_25g", "--watch", "0.01") == 130
    lines = [line for line in capsys.readouterr().out.splitlines() if " over mooncake: " in line]
    assert len(lines) == 3
    assert re.match(r"\d\d:\d\d:\d\d cpu-5 to cpu-2 over mooncake: 0.2\d GB/s.* slower than before", lines[2])


def test_a_watch_as_json_is_one_object_for_each_news(cluster: Cluster, capsys: Any, monkeypatch: Any) -> None:
    probe = cluster.probe

    async def probed(*args: Any, **options: Any) -> list[Measured]:
        if cluster.rounds == 2:
            raise KeyboardInterrupt
        return await probe(*args, **options)

    monkeypatch.setattr(probe_run, "probe", probed)
    assert call("--watch", "0.01", "--json") == 130
    (line,) = capsys.readouterr().out.splitlines()
    assert len(json.loads(line)["paths"]) == 2


def test_a_path_is_told_when_it_is_measured_and_an_interrupt_keeps_it(
    cluster: Cluster, capsys: Any, tmp_path: Path, redis_url: str, namespace: str
) -> None:
    file, words = tmp_path / "paths.toml", ["--claim", "tcp_25g"]
    words += ["--toml", str(file), "--redis", redis_url, "--namespace", namespace]
    assert call(*words) == 0
    told = capsys.readouterr()
    assert "2 paths of up to about 60 s each: 2 min at most" not in told.out
    assert "2 paths of up to about 60 s each: 2 min at most" in told.err
    cluster.moves, cluster.ends_after = {"cpu-2": samples(0.3)}, 1
    assert call(*words) == 130
    told = capsys.readouterr()
    assert re.search("cpu-2 to cpu-5 over mooncake: 0.3", told.out)
    assert "interrupted: 1 of 2 paths were measured" in told.err
    rates = {rule.src_host: load_links(file)[rule.path].beta_bytes_per_s for rule in load_rules(file)[:2]}
    assert rates["cpu-2", "10.0.0.2"] == pytest.approx(0.3e9, rel=0.05)
    assert rates["cpu-5", "10.0.0.5"] == pytest.approx(2.2e9, rel=0.05)  # of the probe before
    there = stored(redis_url, namespace)["cpu-2", "cpu-5", "mooncake"]
    assert there.fitted.curve.beta_bytes_per_s == pytest.approx(0.3e9, rel=0.05)


def test_an_interrupt_before_any_path_leaves_everything_as_it_was(
    cluster: Cluster, capsys: Any, tmp_path: Path
) -> None:
    file = tmp_path / "paths.toml"
    assert call("--toml", str(file)) == 0
    before, cluster.ends_after = file.read_text(), 0
    capsys.readouterr()
    assert call("--toml", str(file), "--json") == 130
    assert capsys.readouterr().out == ""
    assert file.read_text() == before


def test_a_watch_that_is_interrupted_midway_keeps_the_whole_plot(
    cluster: Cluster, tmp_path: Path, monkeypatch: Any
) -> None:
    drawn: list[int] = []

    def draw(found: Any, _: Path) -> None:
        drawn.append(len(found))
        cluster.ends_after = 1

    monkeypatch.setattr(probe_outputs, "draw", draw)
    pytest.importorskip("matplotlib")
    assert call("--watch", "0.01", "--plot", str(tmp_path / "paths.png")) == 130
    assert (cluster.rounds, drawn) == (2, [2])


def test_a_line_is_out_before_the_next_path_is_measured(
    cluster: Cluster, capsys: Any, monkeypatch: Any
) -> None:
    probe, seen = cluster.probe, []

    async def probed(*args: Any, **options: Any) -> list[Measured]:
        done = options.pop("done")

        def tell(one: Measured) -> None:
            done(one)
            seen.append(capsys.readouterr().out)

        return await probe(*args, done=tell, **options)

    monkeypatch.setattr(probe_run, "probe", probed)
    assert call("--claim", "tcp_25g") == 0
    assert [text.split(":")[0] for text in seen] == [
        "cpu-2 to cpu-5 over mooncake", "cpu-5 to cpu-2 over mooncake",
    ]  # fmt: skip


def test_what_cannot_be_drawn_or_written_loses_nothing_else(
    cluster: Cluster, capsys: Any, tmp_path: Path, monkeypatch: Any, redis_url: str, namespace: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise CommandError("the disk is full")

    monkeypatch.setattr(probe_outputs, "draw", fails)
    file, plot = tmp_path / "paths.toml", str(tmp_path / "paths.png")
    words = ("--claim", "tcp_25g", "--redis", redis_url, "--namespace", namespace, "--plot", plot)
    assert call("--toml", str(file), *words) == 1
    told = capsys.readouterr()
    assert "cpu-2 to cpu-5 over mooncake: 2.2 GB/s" in told.out
    assert "--plot: the disk is full" in told.err
    assert "could not be written everywhere: --plot" in told.err
    assert len(load_rules(file)) > 2
    assert len(stored(redis_url, namespace)) == 2
    file.unlink()
    monkeypatch.setattr(probe_outputs, "write", fails)
    assert call("--toml", str(file), *words) == 1
    assert len(stored(redis_url, namespace)) == 2


def test_a_reader_that_has_left_takes_no_measurement_with_it(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "paths.toml"
    for words, paths in ((["--toml", str(file)], 2), ([], 1)):
        cluster.told.clear()
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as closed, contextlib.redirect_stdout(closed):
            assert call("--claim", "tcp_25g", *words) == 0
        assert len(cluster.told) == paths
    assert len([rule for rule in load_rules(file) if rule.names_hosts]) == 2


def test_a_watch_outlives_a_store_that_goes_away(
    cluster: Cluster, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    there: list[Any] = []

    async def in_store(*_: Any) -> dict[Any, Any]:
        return {}

    async def tell(_: Any, __: Any, kept: Any) -> None:
        if cluster.rounds in (2, 3):
            raise CommandError("store redis://10.0.0.9: Connection refused")
        if cluster.rounds == 6:
            raise KeyboardInterrupt
        there.append((cluster.rounds, len(kept)))

    monkeypatch.setattr(probe_run, "in_store", in_store)
    monkeypatch.setattr(probe_outputs, "tell", tell)
    assert call("--watch", "0.01", "--redis", "redis://10.0.0.9") == 130
    assert there == [(1, 2), (4, 2), (5, 2)]
    err = capsys.readouterr().err
    assert err.count("Connection refused") == 1
    assert err.count("--redis: written again") == 1


def test_an_agent_that_does_not_answer_is_told_once_with_what_to_do(
    cluster: Cluster, capsys: Any, monkeypatch: Any
) -> None:
    why = "10.0.0.5:8600 refuses connections"
    cluster.agents["10.0.0.5:8600"] = f"{why}: is 'kvferry probe serve' running there?"
    cluster.transports = ("mooncake", "nixl")
    cluster.moves, cluster.errors = {}, {"cpu-2": why, "10.0.0.5:8600": why}
    assert call("--claim", "cpu-2,cpu-5=tcp_25g") == 1  # who does not answer may be cpu-5
    told = capsys.readouterr()
    assert told.err.count("is 'kvferry probe serve' running there") == 1
    assert "--claim: no path for 'cpu-2,cpu-5=tcp_25g'" in told.err
    assert told.out.count(f"not measured: {why}\n") == 4


def test_one_agent_by_two_addresses_is_no_path(cluster: Cluster, capsys: Any) -> None:
    same = msgspec.structs.replace(described("cpu-2"), agent_id="1f")
    cluster.agents = dict.fromkeys(cluster.agents, same)
    assert call() == 2
    assert "10.0.0.2:8600 and 10.0.0.5:8600 are one agent" in capsys.readouterr().err
    assert not cluster.asked


def test_the_plot_is_a_picture(cluster: Cluster, capsys: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cluster.transports = ("mooncake", "nixl")
    cluster.moves["cpu-5"] = samples(2.2)[:2]
    assert call("--plot", str(tmp_path / "paths.png")) == 1
    assert (tmp_path / "paths.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_says_what_to_install(
    cluster: Cluster, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert call("--plot", str(tmp_path / "paths.png")) == 1
    assert "pip install 'kvferry[plot]'" in capsys.readouterr().err
    assert not cluster.asked


def test_names_of_hosts_are_shown_as_they_are(cluster: Cluster, capsys: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cluster.agents = {"10.0.0.2:8600": described("[/red]"), "10.0.0.5:8600": described("$\\frac$")}
    cluster.moves = {name: samples(2.2) for name in ("[/red]", "$\\frac$")}
    toml = tmp_path / "paths.toml"
    assert call("--plot", str(tmp_path / "paths.png"), "--toml", str(toml)) == 0
    out = capsys.readouterr().out
    assert any(line.split()[:3] == ["[/red]", "$\\frac$", "mooncake"] for line in out.splitlines())
    assert {"[/red]", "$\\frac$"} <= {name for rule in load_rules(toml) for name in rule.src_host}


def test_routers_are_not_told_of_host_memory_where_workers_have_gpus(
    cluster: Cluster, capsys: Any, redis_url: str, namespace: str
) -> None:
    cluster.agents["10.0.0.2:8600"] = described("cpu-2", gpus=("NVIDIA H200",))
    words = ("--redis", redis_url, "--namespace", namespace)
    assert call(*words) == 0
    assert "routers are not told: host memory" in capsys.readouterr().err
    assert stored(redis_url, namespace) == {}
    assert call(*words, "--device", "cuda:0") == 0
    assert len(stored(redis_url, namespace)) == 2
    assert cluster.asked[-1][2]["device"] == "cuda:0"


def test_two_agents_on_one_host_are_one_host_and_the_slower_path_counts() -> None:
    told = {"127.0.0.1:1": described("vm", "id"), "127.0.0.1:2": described("vm", "id")}
    hosts = hosts_of(told)
    assert {host.names for host in hosts.values()} == {("vm", "localhost")}
    judge = Judge(Claims.load(()), hosts)
    there, back = (
        Measured(src, dst, "mooncake", samples(rate), src_address=src, dst_address=dst)
        for src, dst, rate in (("127.0.0.1:1", "127.0.0.1:2", 2.2), ("127.0.0.1:2", "127.0.0.1:1", 1.1))
    )
    found = [judge.found(one, None, 1.0) for one in (there, back)]
    assert {one.claimed_class for one in found} == {"loopback_tcp_mooncake"}
    for order in (found, found[::-1]):
        (kept,) = to_keep(order, {})
        assert kept.fitted.curve.beta_bytes_per_s == pytest.approx(1.1e9, rel=0.05)


def test_a_name_of_several_machines_names_none() -> None:
    hosts = hosts_of({"10.0.0.1:1": described("n", "a"), "10.0.0.2:1": described("n", "b"), "c:1": "gone"})
    assert [host.names for host in hosts.values()] == [("10.0.0.1",), ("10.0.0.2",), ("c",)]


def test_a_claim_may_say_the_address_that_peers_do(cluster: Cluster, capsys: Any) -> None:
    assert call("--claim", "10.0.0.2:8600,10.0.0.5=tcp_25g", "--json") == 0
    there, back = json.loads(capsys.readouterr().out)["paths"]
    assert (there["claimed_class"], back["claimed_class"]) == ("tcp_25g", "tcp_100g")
    hosts = hosts_of({f"127.0.0.1:{port}": described("vm", "id") for port in (1, 2)})
    one, other = hosts.values()
    claim = Claim.parse("127.0.0.1:1,127.0.0.1:2=tcp_25g")
    assert (claim.fits(one, other, "nixl"), claim.fits(other, one, "nixl")) == (True, False)


@given(
    curve=st.builds(
        Curve,
        *[st.floats(0.0, 10.0) for _ in range(3)],
        split_bytes=st.sampled_from([math.inf, 1e6]),
        jump_s=st.floats(0.0, 10.0),
        late_s_per_byte=st.floats(0.0, 10.0),
        late_gamma_s=st.floats(0.0, 10.0),
    ),
    error=st.sampled_from([None, "gone"]),
    ratio=st.sampled_from([math.inf, math.nan, 1.0]),
)
def test_json_of_any_curve_is_json_and_has_every_field(curve: Curve, error: Any, ratio: float) -> None:
    fitted = Fit(curve, 0.1, ratio, ratio, 9)
    links = load_links(None)
    judgement = dataclasses.replace(judge(curve, "tcp_25g", links, False), ratio=ratio)
    told = report("a", "b", "mooncake", fitted, judgement, 0.0, ratio)
    one = Finding(Measured("a", "b", "mooncake"), "tcp_25g", error, fitted, judgement, told)
    read = json.loads(json.dumps(one.told(), allow_nan=False))
    bare = Finding(Measured("a", "b", "mooncake"), "tcp_25g", "gone").told()
    assert read.keys() == bare.keys() >= FIELDS
    assert {key for key in FIELDS if bare[key] is None} == FIELDS - {
        "src", "dst", "transport", "claimed_class", "verdict",
    }  # fmt: skip
    if not math.isfinite(curve.beta_bytes_per_s):
        assert read["beta_gb_s"] is None
    for row in shown([one]).splitlines():
        assert len(row) <= 80


def shown(found: list[Finding]) -> str:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(paths_table(found))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_long_names_keep_their_ends_and_leave_the_figures_whole() -> None:
    curve = Curve(0.123, 1.0 / 12.34e9, 0.00456)
    fitted = Fit(curve, 0.1, 0.1, None, 9)
    judgement = judge(curve, "tcp_25g", load_links(None), False)
    told = report("a", "b", "mooncake", fitted, judgement)
    names = [f"gpu-node-{n}.rack.cluster.example.org:{port}" for n in (17, 18) for port in (8600, 8601)]
    found = [
        Finding(Measured(one, other, "mooncake"), "tcp_25g", None, fitted, judgement, told)
        for one, other in itertools.permutations(names, 2)
    ]
    text = shown(found)
    assert all(len(row) <= 80 for row in text.splitlines())
    for figure in ("12.3", "123 ms", "4.56 ms", "10%", f"{judgement.ratio:.2g}"):
        assert text.count(figure) >= len(found)
    assert text.count("8600") == text.count("8601") == len(found)


def test_what_says_more_of_a_claim_goes_first() -> None:
    claims = Claims.load(("tcp_25g", "nixl=tcp_100g", "a,b=loopback_tcp_nixl", "a,b,nixl=pcie4_x16_p2p"))
    a, b = Host(("a",)), Host(("b", "10.0.0.9"))
    found = [claims.of(*pair, by).name for pair in ((a, b), (b, a)) for by in ("nixl", "mooncake")]
    assert found == ["pcie4_x16_p2p", "loopback_tcp_nixl", "tcp_100g", "tcp_25g"]


def test_two_agents_and_a_probe_as_people_start_them(tmp_path: Path) -> None:
    pytest.importorskip("mooncake.engine", reason="Mooncake is not installed")
    ports = [_free_port() for _ in range(2)]
    kvferry = [sys.executable, "-m", "kvferry.integrations.cli.app"]
    env = {**os.environ, "KVFERRY_PROBE_TOKEN": "secret", "COLUMNS": "80"}
    agents = [
        subprocess.Popen(
            [*kvferry, "probe", "serve", "--port", str(port), "--name", f"host-{port}"], env=env,
            stderr=(tmp_path / f"{port}").open("w"), start_new_session=True,
        )
        for port in ports
    ]  # fmt: skip
    try:
        for port in ports:
            _until(lambda port=port: "--host ADDRESS lets others" in (tmp_path / f"{port}").read_text())
        peers = ",".join(f"127.0.0.1:{port}" for port in ports)
        words = [*kvferry, "probe", "run", "--peers", peers, "--transports", "mooncake", "--largest-mib", "4"]
        words += ["--budget", "4", "--repeat", "2", "--json"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)["paths"]
        assert {(one["src"], one["dst"]) for one in told} == {
            (f"host-{one}", f"host-{other}") for one, other in (ports, ports[::-1])
        }
        assert all(one["beta_gb_s"] > 0.05 and one["claimed_class"].startswith("loopback") for one in told)
        logged = (tmp_path / f"{ports[0]}").read_text()
        assert "127.0.0.1 measures over mooncake with 4 MiB on cpu" in logged
        assert "secret" not in logged
        del env["KVFERRY_PROBE_TOKEN"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert "paths were not measured" in done.stderr
    finally:
        for agent in agents:
            agent.send_signal(signal.SIGINT)
        for agent in agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(timeout=20)
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _until(condition: Any, timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "did not happen in time"
        time.sleep(0.05)
