import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.leases import LeaseEntry, LeaseOp, Leases, LeaseTotals, total_of


async def test_a_split_request_holds_both_its_workers_and_gives_everything_back(store) -> None:
    leases = Leases(store, "r1")
    await leases.acquire("x", [LeaseEntry("p", 1000, 0, 0), LeaseEntry("d", 0, 1, 1128)], ttl_s=60)
    assert await leases.totals() == {"r1": {"p": LeaseTotals(1000), "d": LeaseTotals(0, 1, 1128)}}
    assert await leases.prefill_done("x")
    assert not await leases.prefill_done("x")
    assert await leases.totals() == {"r1": {"d": LeaseTotals(0, 1, 1128)}}
    assert await leases.release("x")
    assert not await leases.release("x")
    assert await leases.totals() == {}
    assert await store.client.exists(store.keys.leases, store.keys.lease_expiry, store.keys.lease_totals) == 0


async def test_acquiring_twice_replaces_and_does_not_add(store) -> None:
    leases = Leases(store, "r1")
    await leases.acquire("x", [LeaseEntry("p", 1000)], ttl_s=60)
    await leases.acquire("x", [LeaseEntry("q", 10, 1, 20)], ttl_s=60)
    assert await leases.totals() == {"r1": {"q": LeaseTotals(10, 1, 20)}}


async def test_a_crashed_routers_leases_expire_and_a_renewed_one_stays(store) -> None:
    crashed, alive = Leases(store, "r1"), Leases(store, "r2")
    await crashed.acquire("x", [LeaseEntry("p", 1000)], ttl_s=0.3)
    await alive.acquire("x", [LeaseEntry("p", 50)], ttl_s=0.3)
    assert total_of(await alive.totals()) == {"p": LeaseTotals(1050)}
    assert await alive.renew("x", ttl_s=60)
    await asyncio.sleep(0.5)
    assert await alive.totals() == {"r2": {"p": LeaseTotals(50)}}
    assert not await crashed.renew("x", ttl_s=60)


async def test_a_restarted_router_clears_only_its_own(store) -> None:
    first, other = Leases(store, "r1"), Leases(store, "r10")
    for lease_id in ("x", "y"):
        await first.acquire(lease_id, [LeaseEntry("p", 7)], ttl_s=60)
        await other.acquire(lease_id, [LeaseEntry("p", 1)], ttl_s=60)
    assert await Leases(store, "r1").reset() == 2
    assert await other.totals() == {"r10": {"p": LeaseTotals(2)}}


async def test_two_routers_at_once_lose_no_update(shared_server, store) -> None:
    second = await open_store(shared_server.url, namespace=store.keys.namespace)
    try:
        routers = [Leases(store, "r1"), Leases(second, "r2")]

        at_once = asyncio.Semaphore(40)

        async def one(router: Leases, n: int) -> None:
            lease_id = f"lease-{n}"
            async with at_once:
                await router.acquire(lease_id, [LeaseEntry("p", n + 1), LeaseEntry("d", 0, 1, n)], ttl_s=60)
                await router.prefill_done(lease_id)
                if n % 3:
                    await router.release(lease_id)

        await asyncio.gather(*(one(router, n) for n in range(120) for router in routers))
        left = [n for n in range(120) if n % 3 == 0]
        expected = {"d": LeaseTotals(0, len(left), sum(left))}
        assert await routers[0].totals() == {"r1": expected, "r2": expected}
        assert total_of(await routers[0].totals(), without="r1") == expected
    finally:
        await second.close()


async def test_a_script_survives_a_server_that_forgot_it(store) -> None:
    leases = Leases(store, "r1")
    await leases.acquire("x", [LeaseEntry("p", 1)], ttl_s=60)
    await store.client.script_flush()
    await leases.acquire("y", [LeaseEntry("p", 1)], ttl_s=60)
    assert await leases.totals() == {"r1": {"p": LeaseTotals(2)}}


async def test_lost_totals_never_go_below_nothing(store) -> None:
    leases = Leases(store, "r1")
    await leases.acquire("x", [LeaseEntry("p", 5, 1, 6)], ttl_s=60)
    await store.client.delete(store.keys.lease_totals)
    await leases.acquire("y", [LeaseEntry("p", 2)], ttl_s=60)
    await leases.release("x")
    assert all(
        total >= 0 for totals in (await leases.totals()).values() for t in totals.values() for total in t
    )


entries = st.lists(
    st.builds(LeaseEntry, st.sampled_from(["p", "d"]), *(st.integers(0, 10**6) for _ in range(3))),
    max_size=3,
)
ids = st.sampled_from("xyz")
ops = st.one_of(
    # a lease without time to live is expired when the next step looks: expiry without waiting
    st.tuples(ids, st.sampled_from([0.0, 3600.0]), entries).map(lambda t: LeaseOp("set", *t)),
    ids.map(lambda i: LeaseOp("prefill_done", i)),
    ids.map(lambda i: LeaseOp("release", i)),
    ids.map(lambda i: LeaseOp("renew", i, 3600.0)),
    st.just(LeaseOp("reset")),
)


class Model:
    """What the scripts must do, in plain Python; `batch` is what runs between two looks at the clock."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], tuple[float, list[LeaseEntry]]] = {}

    def sweep(self) -> None:
        self.held = {key: lease for key, lease in self.held.items() if lease[0] > 0}

    def batch(self, router: str, steps: list[LeaseOp]) -> list[int]:
        self.sweep()
        return [self.step(router, op) for op in steps]

    def step(self, router: str, op: LeaseOp) -> int:
        key = (router, op.lease_id)
        if op.op == "set":
            self.held[key] = (op.ttl_s, list(op.entries))
            return 1
        if op.op == "reset":
            mine = [k for k in self.held if k[0] == router]
            for k in mine:
                del self.held[k]
            return len(mine)
        if key not in self.held:
            return 0
        ttl_s, held = self.held[key]
        if op.op == "release":
            del self.held[key]
        elif op.op == "renew":
            self.held[key] = (op.ttl_s, held)
        else:
            self.held[key] = (ttl_s, [e._replace(prefill_tokens=0) for e in held])
            return int(any(e.prefill_tokens for e in held))
        return 1

    def totals(self) -> dict[str, dict[str, LeaseTotals]]:
        self.sweep()
        sums: dict[str, dict[str, LeaseTotals]] = {}
        for (router, _), (_, held) in self.held.items():
            for entry in held:
                if any(entry[1:]):
                    mine = sums.setdefault(router, {})
                    mine[entry.worker] = mine.get(entry.worker, LeaseTotals()).plus(LeaseTotals(*entry[1:]))
        return sums


@given(
    script=st.lists(
        st.tuples(st.sampled_from(["r1", "r2"]), st.lists(ops, min_size=1, max_size=4)), max_size=12
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_interleaving_equals_the_plain_model(shared_server, script) -> None:
    async def run() -> None:
        store = await open_store(shared_server.url, namespace="law")
        try:
            await store.client.flushdb()
            routers = {name: Leases(store, name) for name in ("r1", "r2")}
            model = Model()
            for router, batch in script:
                assert await routers[router].apply(batch) == model.batch(router, batch)
                assert await routers[router].totals() == model.totals()
        finally:
            await store.close()

    asyncio.run(run())
