"""What the probe says of a wire whose rate the kernel holds down, between two network namespaces."""

import subprocess
from pathlib import Path

import pytest

from kvferry.integrations.probe.run import Scope, probe
from kvferry.models.paths.change import since
from kvferry.models.paths.fit import fit
from kvferry.models.paths.settled import settled

MIB = 2**20
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
# As little memory as a wire has, and yet so much that a processor which wakes late sends no less for it.
BURST_S = 2e-3
# What waits in the bucket's queue and is larger than a burst would wait for ever.
LEAST_BURST = 128 * 1024
NEAR = 0.1
DROPPED = 10


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def limit(wire, gbit):
    burst = max(int(gbit * 1e9 / 8 * BURST_S), LEAST_BURST)
    bucket = ["rate", f"{gbit * 1000:g}mbit", "burst", f"{burst}b", "latency", "400ms"]
    change = ["qdisc", "change", "dev", wire.device, "root", "tbf"]
    subprocess.run(["tc", "-n", wire.namespace, *change, *bucket], check=True)


@pytest.fixture
def wired(start):
    """A wire and the agents at its ends: what the far one sends is held down."""
    from prediction_parts.wire import NoWire, shaped

    try:
        with shaped(1000) as wire:
            near = wire.device.removesuffix("b") + "a"
            ends = [
                start(
                    name,
                    host,
                    prefix,
                    {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": device, "UCX_MODULES": "^ib"},
                )
                for name, host, prefix, device in (
                    ("far", wire.address, wire.prefix, wire.device),
                    ("near", wire.here, (), near),
                )
            ]
            yield wire, [end.address for end in ends]
            for end in ends:
                end.process.terminate()
                end.process.wait(20)
    except NoWire as error:
        pytest.skip(f"no shaped wire here: {error}")


async def held_down(addresses, transport, largest_bytes, budget_s, progress=lambda _: None):
    scope = Scope(largest_bytes=largest_bytes, budget_s=budget_s)
    there, back = await probe(addresses, [transport], scope=scope, progress=progress)
    if "pip install" in (there.error or ""):
        pytest.skip(str(there.error))
    assert (there.error, back.error) == (None, None)
    return there.samples


@pytest.mark.parametrize(("gbit", "largest_bytes"), [(1.0, 16 * MIB), (5.0, 64 * MIB)])
@pytest.mark.parametrize("transport", ["mooncake", "nixl"])
async def test_the_rate_of_a_wire_is_found_within_10_percent(wired, transport, gbit, largest_bytes):
    wire, addresses = wired
    limit(wire, gbit)
    samples = await held_down(addresses, transport, largest_bytes, 8.0)
    assert settled(samples).change is None
    assert fit(samples).curve.beta_bytes_per_s * 8 / 1e9 == pytest.approx(gbit, rel=NEAR)


async def test_a_wire_that_gets_ten_times_slower_during_a_run_is_noticed(wired):
    wire, addresses = wired
    limit(wire, 1.0)
    dropped_at = 0

    def drop(progress):
        nonlocal dropped_at
        if not dropped_at and progress.path == 1 and progress.moves == 80:
            limit(wire, 1.0 / DROPPED)
            dropped_at = progress.moves

    samples = await held_down(addresses, "mooncake", 16 * MIB, 8.0, drop)
    assert since(fit(samples[:dropped_at]), samples[dropped_at:]) is not None
    found = settled(samples)
    assert found.change is not None
    assert abs(found.since - dropped_at) <= 25
    assert found.change.slower > 0.5 * DROPPED
    assert found.fitted.curve.beta_bytes_per_s * 8 / 1e9 == pytest.approx(1.0 / DROPPED, rel=0.25)
