"""What an agent answers, and that nothing is left behind in it."""

import asyncio
import logging
import time

import aiohttp
import msgspec
import pytest

from kvferry.integrations.probe import agent, sessions
from kvferry.integrations.probe.client import Agent, AgentError, AgentUnreached
from kvferry.integrations.probe.messages import Connect, Described, Line, Moved, Open, Wanted
from kvferry.integrations.probe.registration import line
from kvferry.integrations.probe.session import Session

MIB = 2**20
IDLE_SHARE = 0.02


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def made(monkeypatch):
    """The tables of sessions of the agents in this process."""
    kept = []

    class Kept(sessions.Sessions):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            kept.append(self)

    monkeypatch.setattr(agent, "Sessions", Kept)
    return kept


async def soon(holds):
    for _ in range(500):
        if holds():
            return True
        await asyncio.sleep(0.02)
    return False


async def moved(client, own, theirs, wanted):
    """Samples until the error that ended them, and that."""
    samples = []
    try:
        async for sample in client.moves(own.session, theirs.session, wanted, 10.0):
            samples.append(sample)  # noqa: PERF401 - those before the error count
    except AgentError as error:
        return samples, str(error)
    return samples, ""


async def opened_pair(client, **asked):
    ends = [await client.open(Open("local", MIB, **asked)) for _ in range(2)]
    took_s = await client.connect(ends[0].session, Connect(ends[1].session, ends[1].metadata, 10.0))
    return ends, took_s


async def test_it_describes_its_host(http):
    async with agent.running("127.0.0.1", 0, name="cpu-2") as port:
        told = await Agent(http, f"127.0.0.1:{port}").describe()
    assert told.name == "cpu-2"
    assert told.host_id
    assert told.cores > 0 < told.memory_bytes
    assert told.transports["local"] == ""
    assert {"local", "mooncake", "nixl"} == set(told.transports)
    assert told.versions.keys() >= {"python", "kvferry"}


async def test_moves_alone_and_at_once_are_measured(http, made):
    async with agent.running("127.0.0.1", 0) as port:
        client = Agent(http, f"127.0.0.1:{port}")
        (own, theirs), first_contact_s = await opened_pair(client)
        assert first_contact_s >= 0
        assert own.registration_s >= 0 <= own.registration_s_per_byte
        wanted = [Wanted(4096, 1), Wanted(MIB, 16), Wanted(65536, 16, 2), Wanted(4096, 16)]
        samples = [s async for s in client.moves(own.session, theirs.session, wanted, 10.0)]
        told = [(s.moved_bytes, s.descriptors, s.concurrency) for s in samples]
        assert told == [(4096, 1, 1), (MIB, 16, 1), (65536, 16, 2), (65536, 16, 2), (4096, 16, 1)]
        assert all(sample.total_s > 0 for sample in samples)
        assert len(made[0]) == 2
        await client.end(own.session, settled=True)
        await client.end(theirs.session, settled=True)
        await client.end(theirs.session, settled=True)  # nobody minds
        assert (len(made[0]), made[0].taken_bytes) == (0, 0)


async def test_a_session_that_expects_moves_polls_until_nobody_asks_for_it(http, made, monkeypatch):
    woken = []
    monkeypatch.setattr(Session, "wake", lambda session: woken.append(session))
    async with agent.running("127.0.0.1", 0) as port:
        client = Agent(http, f"127.0.0.1:{port}")
        opened = await client.open(Open("local", MIB))
        async with client.awake(opened.session):
            assert await soon(lambda: len(woken) > 3)
        assert await soon(lambda: not made[0].in_use(opened.session))
        before = len(woken)
        await asyncio.sleep(0.05)
        assert len(woken) == before


async def test_who_keeps_a_session_awake_is_let_go_when_it_ends(http):
    async with agent.running("127.0.0.1", 0) as port:
        address = f"127.0.0.1:{port}"
        client = Agent(http, address)
        opened = await client.open(Open("local", MIB))
        answer = await http.post(f"http://{address}/v1/sessions/{opened.session}/awake")
        await client.end(opened.session, settled=True)
        assert await asyncio.wait_for(answer.read(), 10.0) == b""


@pytest.mark.parametrize("name", ["rack/3", "a?b#c%2f", "..", 'two\nlines "', "x" * 255])
async def test_whatever_a_host_is_called_its_sessions_are_found(http, made, name):
    async with agent.running("127.0.0.1", 0, name=name) as port:
        client = Agent(http, f"127.0.0.1:{port}")
        (own, theirs), _ = await opened_pair(client)
        samples, error = await moved(client, own, theirs, [Wanted(4096)])
        assert (len(samples), error) == (1, "")
        for one in (own, theirs):
            await client.end(one.session, settled=True)
        assert (len(made[0]), made[0].taken_bytes) == (0, 0)


async def test_what_a_failed_move_may_still_write_to_is_held_for_a_while(http, made, monkeypatch):
    monkeypatch.setattr(sessions, "HOLD_S", 0.05)
    async with agent.running("127.0.0.1", 0) as port:
        client = Agent(http, f"127.0.0.1:{port}")
        opened = await client.open(Open("local", MIB))
        await client.end(opened.session, settled=False)
        assert (len(made[0]), made[0].taken_bytes) == (0, MIB)
        assert await soon(lambda: not made[0].taken_bytes)


async def test_a_session_that_nobody_uses_is_closed(http, made):
    async with agent.running("127.0.0.1", 0, idle_s=0.1) as port:
        client = Agent(http, f"127.0.0.1:{port}")
        opened = await client.open(Open("local", MIB))
        assert await soon(lambda: not len(made[0]))
        with pytest.raises(AgentError, match="no session"):
            await client.connect(opened.session, Connect("b", b"", 1.0))


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"transport": "carrier-pigeon", "nbytes": MIB}, 400, "no transport 'carrier-pigeon'"),
        ({"transport": "local", "nbytes": 5 * MIB}, 400, "more than this agent gives"),
        ({"transport": "local", "nbytes": 0}, 400, "invalid body"),
        ({"transport": "local"}, 400, "invalid body"),
        (msgspec.Raw(b'{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), 400, "invalid body"),
        ({"transport": "local", "nbytes": MIB, "device": "tpu:0"}, 400, "no device 'tpu:0'"),
        ({"transport": "mooncake", "nbytes": MIB}, 501, "pip install"),
    ],
)
async def test_what_cannot_be_opened_is_refused_in_openai_s_shape(
    http, made, monkeypatch, asked, status, words
):
    monkeypatch.setitem(__import__("sys").modules, "mooncake.engine", None)
    async with agent.running("127.0.0.1", 0, memory_bytes=4 * MIB) as port:
        answer = await http.post(f"http://127.0.0.1:{port}/v1/sessions", data=msgspec.json.encode(asked))
        told = await answer.json()
    assert answer.status == status
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert words in told["error"]["message"]
    assert made[0].taken_bytes == 0


async def test_memory_that_others_have_is_not_to_be_had(http):
    async with agent.running("127.0.0.1", 0, memory_bytes=4 * MIB) as port:
        client = Agent(http, f"127.0.0.1:{port}")
        first = await client.open(Open("local", 3 * MIB))
        with pytest.raises(AgentError, match="taken by other probes"):
            await client.open(Open("local", 2 * MIB))
        await client.end(first.session, settled=True)
        await client.open(Open("local", 2 * MIB))


async def test_a_move_that_fails_ends_the_lines_with_why(http):
    async with agent.running("127.0.0.1", 0) as port:
        client = Agent(http, f"127.0.0.1:{port}")
        (own, theirs), _ = await opened_pair(client)
        samples, error = await moved(client, own, theirs, [Wanted(4096), Wanted(4096, 3), Wanted(4096)])
        assert len(samples) == 1
        assert error == f"127.0.0.1:{port}: 4096 bytes are not 3 blocks of one size"
        with pytest.raises(AgentError, match="connect first"):
            await anext(client.moves(own.session, "stranger", [Wanted(4096)], 10.0))
        with pytest.raises(AgentError, match="not a transport's metadata"):
            await client.connect(own.session, Connect("b", b"damaged", 1.0))
        with pytest.raises(AgentError, match="do not fit"):
            await anext(client.moves(own.session, theirs.session, [Wanted(2 * MIB)], 10.0))


async def test_without_the_token_nothing_is_told_and_it_is_never_logged(http, caplog):
    caplog.set_level(logging.DEBUG)
    async with agent.running("127.0.0.1", 0, token="s3cret-token") as port:
        address = f"127.0.0.1:{port}"
        for token in (None, "s3cret", "s3cret-tokens", "\udcff"):
            answer = await http.get(
                f"http://{address}/v1/agent", headers={"Authorization": f"Bearer {token}"} if token else {}
            )
            told = await answer.json()
            assert (answer.status, told["error"]["type"]) == (401, "authentication_error")
        with pytest.raises(AgentError, match=f"{address}: wrong token"):
            await Agent(http, address, "wr0ng-token").describe()
        assert (await Agent(http, address, "s3cret-token").describe()).cores
    assert "s3cret-token" not in caplog.text
    assert "wr0ng-token" not in caplog.text


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (msgspec.json.encode(Line(Moved(1, 1, 1.0, 1))) + b"\n", "more moves than it was asked for"),
        (b"x" * 65536, "Got more than"),
    ],
)
async def test_an_agent_that_never_ends_is_not_heard_to_the_end(http, piece, why):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = Agent(http, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    async def hear():
        async for _ in client.moves("s", "p", [Wanted(4096)], 10.0):
            pass

    with pytest.raises(AgentError, match=why):
        await asyncio.wait_for(hear(), 30.0)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_host_has_a_name_that_the_store_takes(name):
    told = msgspec.json.encode(Described(name, "h", 1, 1, (), (), {}, {}))
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(told, type=Described)


@pytest.mark.parametrize("body", [b"hi", b'{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"])
async def test_what_is_no_agent_is_told_so(http, body):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(AgentError, match="is no probe agent"):
        await Agent(http, f"127.0.0.1:{port}").describe()
    server.close()
    await server.wait_closed()
    with pytest.raises(AgentError, match=f"127.0.0.1:{port}"):
        await Agent(http, f"127.0.0.1:{port}").describe()


def test_registration_is_a_constant_and_so_much_a_byte():
    constant_s, s_per_byte = line([(n, 2e-4 + 1e-11 * n) for n in (2**20, 2**23, 2**26, 2**28)])
    assert constant_s == pytest.approx(2e-4, rel=1e-3)
    assert s_per_byte == pytest.approx(1e-11, rel=1e-3)
    assert min(line([(2**20, 3e-4), (2**26, 1e-4)])) >= 0.0


@pytest.mark.parametrize("transport", ["mooncake", "nixl"])
async def test_an_agent_that_waits_takes_under_2_percent_of_a_core(start, http, transport):
    host = start("idle")
    client = Agent(http, host.address)
    if why_not := (await client.describe()).transports[transport]:
        pytest.skip(why_not)
    await client.open(Open(transport, MIB))
    shares = []
    for _ in range(3):
        await asyncio.sleep(0.3)
        used_s, began_s = host.cpu_s(), time.monotonic()
        await asyncio.sleep(1.5)
        shares.append((host.cpu_s() - used_s) / (time.monotonic() - began_s))
        if shares[-1] < IDLE_SHARE:
            return
    pytest.fail(f"shares of a core: {shares}")


async def test_what_is_no_agent_is_not_quoted(http):
    page = b"<!DOCTYPE html><title>nginx</title>"

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(page) + page)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AgentError) as raised:
            await Agent(http, f"127.0.0.1:{port}").describe()
    assert str(raised.value) == f"127.0.0.1:{port} is no probe agent: it answers with status 404"
    with pytest.raises(AgentUnreached) as refused:
        await Agent(http, f"127.0.0.1:{port}").describe()
    assert str(refused.value) == f"127.0.0.1:{port} refuses connections"


async def test_too_much_memory_is_told_in_units_and_flags_of_the_commands(http):
    async with agent.running("127.0.0.1", 0, memory_bytes=4 * MIB) as port:
        client = Agent(http, f"127.0.0.1:{port}")
        with pytest.raises(AgentError, match=r"5 MiB .* gives \(4 MiB\).*--memory-mib.*--largest-mib"):
            await client.open(Open("local", 5 * MIB))
        await client.open(Open("local", 3 * MIB))
        with pytest.raises(AgentError, match=r"3 MiB of 4 MiB are taken.*--memory-mib.*--largest-mib"):
            await client.open(Open("local", 2 * MIB))


async def test_the_log_says_who_measures_what(http, caplog):
    caplog.set_level(logging.INFO, "kvferry.probe")
    async with agent.running("127.0.0.1", 0, token="s3cret") as port:
        opened = await Agent(http, f"127.0.0.1:{port}", "s3cret").open(Open("local", 3 * MIB))
    (line,) = [one.getMessage() for one in caplog.records if opened.session in one.getMessage()]
    assert line == f"session {opened.session}: 127.0.0.1 measures over local with 3 MiB on cpu"
    assert "s3cret" not in caplog.text
