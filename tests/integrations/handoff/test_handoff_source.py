"""The source side against a scripted destination, in one process."""

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kvferry.integrations.handoff import filling, scattered
from kvferry.integrations.handoff import messages as said
from kvferry.integrations.handoff.channel import Channel
from kvferry.integrations.handoff.checksums import page_checksums
from kvferry.integrations.handoff.gate import LayerGate
from kvferry.integrations.handoff.source import Source
from kvferry.integrations.handoff.staged import portions
from kvferry.integrations.transports.errors import Cancelled, DeadlinePassed, PeerGone, Refused
from kvferry.integrations.transports.kernels.convert import convert
from kvferry.integrations.transports.kernels.staged import gather, scatter
from kvferry.integrations.transports.kernels.tensors import DTYPES
from kvferry.integrations.transports.local import Local
from kvferry.integrations.transports.pool import KVPool
from kvferry.models.moves.choose import Form
from kvferry.models.moves.impossible import Impossible
from kvferry.models.moves.place import Place
from kvferry.models.moves.plan import plan
from kvferry.models.moves.pool_spec import PoolSpec
from kvferry.models.moves.portions import Portions
from kvferry.policy.layout import LayoutOrder

SPEC = PoolSpec(layers=6, heads=4, head_dim=16, pages=24, page_size=4, dtype="bfloat16")
HERE = Place.of([5, 3, 9, 1, 20, 11])
THERE = Place.of([2, 7, 0, 13, 6, 4])
TOKENS = 23
SLOT_BYTES = 1 << 16
DEADLINE_S = 20.0


class Script:
    """A destination that does as it is told: `answers` maps a kind of message to what is done about it."""

    def __init__(
        self, pools: tuple[PoolSpec, ...], at: Place = THERE, slots: int = 2, **welcome: Any
    ) -> None:
        self.worker, self.at = pools, at
        self.pools = [KVPool(spec) for spec in pools]
        self.memory = torch.zeros(slots * SLOT_BYTES, dtype=torch.uint8)
        self.transport = Local("decode")
        regions = [region for pool in self.pools for region in pool.regions]
        slot_region = dataclasses.replace(
            regions[0], address=self.memory.data_ptr(), nbytes=self.memory.numel()
        )
        metadata = self.transport.register((*regions, slot_region))
        self.welcome = {
            "version": said.VERSION,
            "agent": "decode",
            "transport": "local",
            "metadata": metadata,
            "worker": pools,
            "here": tuple(range(len(pools))),
            "slots": slots,
            "slot_bytes": SLOT_BYTES,
        } | {name.removeprefix("told_"): value for name, value in welcome.items()}
        self.go: dict[str, Any] = {}
        self.heard: list[said.Message] = []
        self.free = list(range(slots))
        self.lent: dict[tuple[int, int], int] = {}
        self.wanted: list[said.Want] = []
        self.answers: dict[type, Callable[[Any], None]] = {
            said.Begin: lambda begin: self.tell(
                said.Go(begin.move, self.at.pages.tolist(), self.at.first, **self.go)
            ),
            said.Want: self.want,
            said.Staged: self.staged,
            said.End: lambda end: self.tell(said.Complete(end.move, 0.25)),
        }
        self.channel: Channel[Any] | None = None
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def tell(self, message: said.Message) -> None:
        assert self.channel is not None
        self.channel.send(message)

    def want(self, want: said.Want) -> None:
        self.wanted.append(want)
        self.lend()

    def lend(self) -> None:
        while self.wanted and self.free:
            want, slot = self.wanted.pop(0), self.free.pop(0)
            self.lent[want.move, want.ticket] = slot
            self.tell(said.Slot(want.move, want.ticket, slot))

    def staged(self, staged: said.Staged) -> None:
        spec = self.worker[staged.dst_rank]
        heads = range(spec.first_head, spec.first_head + spec.heads)
        shape = (staged.layers, 2, staged.tokens, len(heads), spec.head_dim)
        at = Place(self.at.pages, self.at.first + staged.first_token)
        dtype = DTYPES[staged.wire_dtype]
        slot = self.lent.pop((staged.move, staged.ticket))
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        raw = self.memory[slot * SLOT_BYTES : slot * SLOT_BYTES + nbytes].view(dtype).view(shape)
        if staged.checksums:
            assert staged.checksums == page_checksums(raw, at.first, spec.page_size)
        scales = None
        if staged.scales:
            scales = torch.frombuffer(bytearray(staged.scales), dtype=torch.float32)
            scales = scales.view(staged.layers, 2, len(heads))
        layers = range(staged.first_layer, staged.first_layer + staged.layers)
        values, self.scales = convert(raw, spec.dtype, scales)
        scatter(values.clone(), self.pools[staged.dst_rank], at, layers=layers, heads=heads)
        self.free.append(slot)
        self.tell(said.Scattered(staged.move, staged.ticket, 0.01, 0.02, 0.04))
        self.lend()

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    def until(self, kind: type, count: int = 1) -> list[Any]:
        """Messages of a kind, once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(kind)) >= count, DEADLINE_S), self.heard
            return self.of(kind)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        if self.channel is not None:
            self.channel.close()
        self._thread.join()
        self.transport.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, PeerGone):
            while True:
                self.channel = Channel(self._server.accept()[0], said.ToDestination)
                self._hear(self.channel)

    def _hear(self, channel: Channel[Any]) -> None:
        with contextlib.suppress(PeerGone):
            assert isinstance(channel.receive(), said.Hello)
            channel.send(said.Welcome(**self.welcome))
            while True:
                message = channel.receive()
                with self._changed:
                    self.heard.append(message)
                    self._changed.notify_all()
                answer = self.answers.get(type(message))
                if answer is not None:
                    answer(message)


class Slow(Local):
    """Moves that wait until `open` is set; one that is given up may still write until then."""

    def __init__(self, agent: str) -> None:
        super().__init__(agent)
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Event()

    def _drive(self, peer: Any, move: Any) -> None:
        if self.open.is_set():
            return super()._drive(peer, move)
        part = move.take()
        self.begun.set()
        self.open.wait(DEADLINE_S)
        if part is not None and move.landed(part[0], 0.0):
            move.finish()
        return None


class Pair:
    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.transport = Slow("prefill")
        self._stack.callback(self.transport.close)
        self.now_s = 0.0
        self.source: Any = None

    def own(self, *worker: PoolSpec, here: tuple[int, ...] = (), **options: Any) -> Source:
        self.pools = {rank: filled(worker[rank], rank) for rank in here or range(len(worker))}
        options = {"slot_bytes": SLOT_BYTES, "clock": lambda: self.now_s} | options
        self.source = Source(self.transport, worker, self.pools, agent="prefill", **options)
        self._stack.callback(self.source.close)
        return self.source

    def script(self, *worker: PoolSpec, **options: Any) -> Script:
        script = Script(worker, **options)
        self._stack.callback(script.close)
        return script

    def end(self) -> None:
        self.transport.open.set()
        self._stack.close()


def filled(spec: PoolSpec, seed: int) -> KVPool:
    pool = KVPool(spec)
    numbers = torch.Generator().manual_seed(seed)
    for tensor in pool.tensors:
        tensor.copy_(torch.randn(tensor.shape, generator=numbers))
    return pool


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.end()


def same(script: Script, pool: KVPool, rank: int = 0) -> bool:
    sent = gather(pool, HERE, TOKENS)
    return torch.equal(
        gather(script.pools[rank], script.at, TOKENS).view(torch.uint8), sent.view(torch.uint8)
    )


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("order", LayoutOrder)
@pytest.mark.parametrize("form", Form)
def test_a_move_arrives_and_says_what_it_took(pair, form, order, verify):
    source = pair.own(SPEC)
    script = pair.script(dataclasses.replace(SPEC, page_size=8, order=order))
    records = []
    source.on_record.append(records.append)
    departure = source.send(
        source.connect("decode", "127.0.0.1", script.port), 7, HERE, TOKENS, form=form, verify=verify
    )
    record = departure.wait(DEADLINE_S)
    assert same(script, pair.pools[0])
    assert script.of(said.Begin)[0].room == 7
    assert records == [record]
    nbytes = TOKENS * SPEC.layers * 2 * SPEC.token_bytes
    assert (record.moved_bytes, record.src_bytes, record.dst_bytes) == (nbytes, nbytes, nbytes)
    assert (record.path, record.form, record.relation) == ("prefill>decode@local", form, "repack")
    assert (record.concurrency, record.gated, record.verified) == (1, False, verify)
    assert record.total_s > record.transport_s >= record.wire_s + record.post_s > 0
    if form is Form.STAGED:
        assert record.batches == record.descriptors == len(script.of(said.Staged))
        assert record.gather_s > 0
        assert record.scatter_s == pytest.approx(0.02 * record.batches)
        assert record.convert_s == pytest.approx(0.01 * record.batches)
    else:
        assert (record.batches, record.gather_s) == (1, 0)
        [landed] = script.of(said.Landed)
        staged = gather(pair.pools[0], HERE, TOKENS)
        assert landed.checksums == (page_checksums(staged, 0, 8) if verify else b"")
    assert record.verify_s > 0.25 if verify else record.verify_s == 0.25
    sample = record.sample()
    assert sample.total_s == pytest.approx(record.transport_s / record.batches)


@pytest.mark.parametrize("form", Form)
def test_a_move_begins_in_the_middle_of_a_page_of_the_destination(pair, form):
    source = pair.own(SPEC)
    script = pair.script(SPEC, at=Place.of([2, 7, 0, 13, 6, 4, 1, 12], first=5))
    source.send(source.connect("d", "127.0.0.1", script.port), 1, HERE, TOKENS, form=form).wait(DEADLINE_S)
    assert same(script, pair.pools[0])


@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize("page_size", [1, 4, 8])
def test_checksums_are_the_same_however_much_is_read_at_a_time(pair, monkeypatch, first, page_size):
    source = pair.own(SPEC)
    at = Place.of(range(2, 2 + -(-(first + TOKENS) // page_size)), first=first)
    script = pair.script(dataclasses.replace(SPEC, pages=40, page_size=page_size), at=at)
    monkeypatch.setattr(scattered, "BUFFER_BYTES", 8 * SPEC.page_bytes // SPEC.page_size)
    peering = source.connect("decode", "127.0.0.1", script.port)
    source.send(peering, 1, HERE, TOKENS, form=Form.SCATTERED, verify=True).wait(DEADLINE_S)
    whole = page_checksums(gather(pair.pools[0], HERE, TOKENS), first, page_size)
    assert script.of(said.Landed)[0].checksums == whole


def test_the_destination_asks_for_checksums(pair):
    source, script = pair.own(SPEC), pair.script(SPEC)
    script.go["verify"] = True
    peering = source.connect("decode", "127.0.0.1", script.port)
    assert source.send(peering, 1, HERE, TOKENS, form=Form.SCATTERED).wait(DEADLINE_S).verified
    assert len(script.of(said.Landed)[0].checksums) == 8 * 6


def test_fp8_is_made_here_in_the_scales_that_are_wanted(pair):
    source, script = pair.own(SPEC), pair.script(dataclasses.replace(SPEC, dtype="fp8_e4m3"))
    wanted = torch.full((SPEC.layers, 2, SPEC.heads), 0.0625)
    script.go["scales"] = (wanted.numpy().tobytes(),)
    peering = source.connect("decode", "127.0.0.1", script.port)
    record = source.send(peering, 1, HERE, TOKENS).wait(DEADLINE_S)
    assert (record.form, record.moved_bytes) == (Form.STAGED, record.src_bytes // 2)
    sent = gather(pair.pools[0], HERE, TOKENS)
    made, _ = convert(sent, "fp8_e4m3", None, wanted)
    found = gather(script.pools[0], THERE, TOKENS)
    assert torch.equal(found.view(torch.uint8), made.view(torch.uint8))
    assert all(message.wire_dtype == "fp8_e4m3" for message in script.of(said.Staged))
    with pytest.raises(Refused, match="must be staged"):
        source.send(peering, 2, HERE, TOKENS, form=Form.SCATTERED).wait(DEADLINE_S)


def test_fp8_that_keeps_its_dtype_brings_its_scales(pair):
    fp8 = dataclasses.replace(SPEC, dtype="fp8_e4m3")
    source, script = pair.own(fp8), pair.script(fp8)
    scales = torch.rand(SPEC.layers, 2, SPEC.heads) + 0.5
    peering = source.connect("decode", "127.0.0.1", script.port)

    def send(form: Form | None) -> Form:
        return source.send(peering, 1, HERE, TOKENS, form=form, scales={0: scales}).wait(DEADLINE_S).form

    send(Form.SCATTERED)
    assert script.of(said.Landed)[0].scales == scales.numpy().tobytes()
    send(Form.STAGED)
    assert b"".join(each.scales for each in script.of(said.Staged)) == scales.numpy().tobytes()
    # Wanted as they are: nothing to convert. Others: every value changes.
    script.go["scales"] = (scales.numpy().tobytes(),)
    assert send(Form.SCATTERED) is Form.SCATTERED
    script.go["scales"] = ((scales * 2).numpy().tobytes(),)
    assert send(None) is Form.STAGED


@pytest.mark.parametrize("form", Form)
def test_layers_leave_when_they_are_computed(pair, form):
    source, script, gate = pair.own(SPEC), pair.script(SPEC), LayerGate()
    peering = source.connect("decode", "127.0.0.1", script.port)
    waited = []
    departure = source.send(peering, 1, HERE, TOKENS, form=form, gate=gate)
    script.until(said.Begin)
    sent = gather(pair.pools[0], HERE, TOKENS)

    def arrived() -> list[bool]:
        found = gather(script.pools[0], THERE, TOKENS)
        return [torch.equal(found[layer], sent[layer]) for layer in range(SPEC.layers)]

    gate.computed(2, lambda: waited.append(2))
    if form is Form.SCATTERED:
        until(lambda: arrived() == [True] * 2 + [False] * 4)
    else:
        time.sleep(0.05)
        assert arrived() == [False] * 6  # a part is 1 MiB at least: all layers are one
    with pytest.raises(DeadlinePassed):
        source.send(peering, 2, HERE, TOKENS, form=form, gate=LayerGate()).wait(0.05)
    gate.computed(1)
    gate.computed(SPEC.layers, lambda: waited.append(6))
    record = departure.wait(DEADLINE_S)
    assert arrived() == [True] * 6
    assert set(waited) == {2, 6}
    assert record.gated
    if form is Form.SCATTERED:
        assert record.batches == 2
    # Layers that were late say nothing of the path: it is not left alone.
    source.send(peering, 3, HERE, TOKENS, form=form).wait(DEADLINE_S)


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("by", ["caller", "destination", "deadline"])
def test_what_is_given_up_is_owed_a_drain(pair, by, form):
    source, script = pair.own(SPEC), pair.script(SPEC)
    peering = source.connect("decode", "127.0.0.1", script.port)
    pair.transport.open.clear()
    departure = source.send(peering, 1, HERE, TOKENS, form=form)
    assert pair.transport.begun.wait(DEADLINE_S)
    if by == "caller":
        departure.cancel()
    elif by == "destination":
        script.tell(said.Cancel(departure.number, "too late"))
    with pytest.raises(DeadlinePassed if by == "deadline" else Cancelled) as raised:
        departure.wait(0.05 if by == "deadline" else DEADLINE_S)
    assert raised.value.may_still_write
    [failed] = script.until(said.Failed)
    assert (failed.move, failed.drained) == (departure.number, False)
    time.sleep(0.05)
    assert not script.of(said.Drained)
    pair.transport.open.set()
    assert script.until(said.Drained)[0].move == departure.number
    assert departure.join(DEADLINE_S)
    assert not script.of(said.End)
    pair.now_s += 10.0
    source.send(peering, 2, HERE, TOKENS, form=form).wait(DEADLINE_S)
    assert same(script, pair.pools[0])


def test_a_refusal_ends_the_move_with_its_reason_and_no_more_words(pair):
    source, script = pair.own(SPEC), pair.script(SPEC)
    script.answers[said.Begin] = lambda begin: script.tell(said.No(begin.move, "no such room"))
    peering = source.connect("decode", "127.0.0.1", script.port)
    departure = source.send(peering, 1, HERE, TOKENS)
    with pytest.raises(Refused, match="decode: no such room") as raised:
        departure.wait(DEADLINE_S)
    assert not raised.value.may_still_write
    assert departure.join(DEADLINE_S)
    with pytest.raises(Refused, match="no such room"):
        source.send(peering, 1, HERE, TOKENS).wait(DEADLINE_S)  # and the path is not blamed
    assert not script.of(said.Failed)


def test_a_failure_at_the_destination_is_answered_with_failed(pair):
    source, script = pair.own(SPEC), pair.script(SPEC)
    script.answers[said.End] = lambda end: script.tell(said.No(end.move, "page 3 is wrong"))
    peering = source.connect("decode", "127.0.0.1", script.port)
    with pytest.raises(Refused, match="page 3 is wrong"):
        source.send(peering, 1, HERE, TOKENS).wait(DEADLINE_S)
    assert script.until(said.Failed)[0].drained


def test_pages_outside_the_destination_are_refused_before_anything_moves(pair):
    source, script = pair.own(SPEC), pair.script(SPEC, at=Place.of([2, 7, 0, 13, 6, 99]))
    peering = source.connect("decode", "127.0.0.1", script.port)
    with pytest.raises(Refused, match="page 99 is outside"):
        source.send(peering, 1, HERE, TOKENS).wait(DEADLINE_S)
    assert script.until(said.Failed)[0].drained
    with pytest.raises(Impossible, match="page 24 is outside"):
        source.send(peering, 1, Place.of([24] * 6), TOKENS)


def test_a_lost_destination_fails_its_moves_and_no_others(pair):
    source, script, other = pair.own(SPEC), pair.script(SPEC), pair.script(SPEC)
    gates = LayerGate(), LayerGate()
    lost = source.send(source.connect("one", "127.0.0.1", script.port), 1, HERE, TOKENS, gate=gates[0])
    goes_on = source.send(source.connect("two", "127.0.0.1", other.port), 1, HERE, TOKENS, gate=gates[1])
    script.until(said.Begin)
    script.close()
    with pytest.raises(PeerGone):
        lost.wait(DEADLINE_S)
    assert lost.join(DEADLINE_S)
    gates[1].computed(SPEC.layers)
    goes_on.wait(DEADLINE_S)
    with pytest.raises(Refused, match="left alone"):
        source.send(lost.peering, 1, HERE, TOKENS)
    again = pair.script(SPEC)
    peering = source.connect("one", "127.0.0.1", again.port)
    source.send(peering, 2, HERE, TOKENS).wait(DEADLINE_S)
    assert same(again, pair.pools[0])
    with pytest.raises(PeerGone):
        source.send(lost.peering, 1, HERE, TOKENS)


def test_a_path_that_failed_is_left_alone_but_for_one_trial(pair):
    source, script = pair.own(SPEC), pair.script(SPEC)
    script.answers[said.End] = lambda end: None
    peering = source.connect("decode", "127.0.0.1", script.port)

    def late() -> None:
        with pytest.raises(DeadlinePassed):
            source.send(peering, 1, HERE, TOKENS).wait(0.05)

    late()
    with pytest.raises(Refused, match="prefill>decode@local is left alone for a while"):
        source.send(peering, 1, HERE, TOKENS)
    pair.now_s = 3.0
    late()
    pair.now_s = 6.0
    with pytest.raises(Refused, match="left alone"):
        source.send(peering, 1, HERE, TOKENS)  # twice as long
    pair.now_s = 8.0
    trial = source.send(peering, 1, HERE, TOKENS)
    with pytest.raises(Refused, match="one request is trying it"):
        source.send(peering, 1, HERE, TOKENS)
    script.until(said.End, 3)
    script.tell(said.Complete(trial.number))
    trial.wait(DEADLINE_S)
    script.answers[said.End] = lambda end: script.tell(said.Complete(end.move))
    source.send(peering, 1, HERE, TOKENS).wait(DEADLINE_S)


def test_a_departure_that_nobody_waits_for_ends(pair):
    source, script = pair.own(SPEC), pair.script(SPEC)
    script.answers[said.Begin] = lambda begin: None
    peering = source.connect("decode", "127.0.0.1", script.port)
    departure = source.send(peering, 1, HERE, TOKENS, limit_s=0.05)
    assert departure.join(DEADLINE_S)
    with pytest.raises(DeadlinePassed, match="no answer within"):
        departure.wait(0.0)
    assert script.until(said.Failed)[0].drained


def test_many_departures_share_two_slots(pair):
    small = portions(plan((SPEC,), HERE, (SPEC,), THERE, TOKENS), 1 << 13)
    assert small == Portions(SPEC.layers, 1, (0, TOKENS))
    source, script = pair.own(SPEC, slot_bytes=1 << 13), pair.script(SPEC)
    peering = source.connect("decode", "127.0.0.1", script.port)
    departures = [source.send(peering, room, HERE, TOKENS, form=Form.STAGED) for room in range(6)]
    assert {departure.wait(DEADLINE_S).batches for departure in departures} == {SPEC.layers}
    assert same(script, pair.pools[0])


@pytest.mark.parametrize("at_a_time", [1, 3, 100])
@pytest.mark.parametrize("dtype", ["bfloat16", "fp8_e4m3"])
def test_layers_that_fit_no_slot_leave_when_they_are_computed(pair, monkeypatch, dtype, at_a_time):
    monkeypatch.setattr(filling, "TOKENS_BYTES", at_a_time * 2 * SPEC.token_bytes)
    source, gate = pair.own(SPEC, slot_bytes=1 << 10), LayerGate()
    script = pair.script(dataclasses.replace(SPEC, dtype=dtype), at=Place.of(THERE.pages, first=1))
    peering = source.connect("decode", "127.0.0.1", script.port)
    departure = source.send(peering, 1, HERE, TOKENS, form=Form.STAGED, gate=gate, verify=True)
    tokens = [3, 4, 4, 4, 4, 4] if dtype == "bfloat16" else [7, 8, 8]  # pages of 4, the first begun
    for layer in range(SPEC.layers):
        gate.computed(layer + 1)
        told = script.until(said.Staged, (layer + 1) * len(tokens))
        time.sleep(0.02)
        assert len(script.of(said.Staged)) == len(told)
        some = told[-len(tokens) :]
        assert [each.tokens for each in some] == tokens
        assert [each.first_token for each in some] == [sum(tokens[:index]) for index in range(len(tokens))]
        assert {(each.first_layer, each.layers) for each in some} == {(layer, 1)}
        assert len({each.scales for each in some}) == 1
    record = departure.wait(DEADLINE_S)
    assert (record.batches, record.gated) == (SPEC.layers * len(tokens), True)
    made, _ = convert(gather(pair.pools[0], HERE, TOKENS), dtype)  # fp8 in the scales of all tokens
    found = gather(script.pools[0], script.at, TOKENS)
    assert torch.equal(found.view(torch.uint8), made.view(torch.uint8))


def test_a_value_that_is_not_finite_is_found_before_any_portion_of_its_layer(pair):
    source = pair.own(SPEC, slot_bytes=1 << 10)
    pair.pools[0].tensors[2][HERE.pages[5], 1, 0, 0] = float("inf")  # K of layer 1, in its last portion
    script = pair.script(dataclasses.replace(SPEC, dtype="fp8_e4m3"))
    peering = source.connect("decode", "127.0.0.1", script.port)
    with pytest.raises(Refused, match="is not finite"):
        source.send(peering, 1, HERE, TOKENS).wait(DEADLINE_S)
    script.until(said.Failed)
    assert {each.first_layer for each in script.of(said.Staged)} <= {0}


def test_slots_that_hold_no_token_leave_only_the_scattered_form(pair):
    source = pair.own(SPEC, slot_bytes=64)
    script, narrow = pair.script(SPEC), pair.script(dataclasses.replace(SPEC, dtype="fp8_e4m3"))
    peering = source.connect("decode", "127.0.0.1", script.port)
    record = source.send(peering, 1, HERE, TOKENS).wait(DEADLINE_S)
    assert record.form is Form.SCATTERED
    for to, form, needed in (
        (peering, Form.STAGED, 256),
        (source.connect("n", "127.0.0.1", narrow.port), None, 128),
    ):
        with pytest.raises(Refused, match=f"{needed} bytes, of one token in one layer, fit no slot of 64"):
            source.send(to, 2, HERE, TOKENS, form=form).wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"told_version": 9}, "version 9"),
        ({"told_transport": "nixl"}, "reached over nixl"),
        ({"told_slots": 99}, "regions"),
        ({"told_here": (0, 5)}, "ranks"),
        ({"told_worker": (dataclasses.replace(SPEC, pages=25),)}, "regions"),
    ],
)
def test_a_destination_that_is_not_what_it_says_is_refused(pair, changed, reason):
    source, script = pair.own(SPEC), pair.script(SPEC, **changed)
    with pytest.raises(Refused, match=reason):
        source.connect("decode", "127.0.0.1", script.port)


def test_a_destination_is_met_once_at_a_time(pair, monkeypatch):
    source, script = pair.own(SPEC), pair.script(SPEC)
    connect, met, go_on = pair.transport.connect, threading.Event(), threading.Event()

    def slow(*told: Any) -> Any:
        peer = connect(*told)
        met.set()
        assert go_on.wait(DEADLINE_S)
        return peer

    monkeypatch.setattr(pair.transport, "connect", slow)
    peerings: list[Any] = []
    first = threading.Thread(target=lambda: peerings.append(source.connect("d", "127.0.0.1", script.port)))
    first.start()
    try:
        assert met.wait(DEADLINE_S)
        with pytest.raises(Refused, match="being connected to already"):
            source.connect("d", "127.0.0.1", script.port)
    finally:
        go_on.set()
        first.join()
    source.send(peerings[0], 1, HERE, TOKENS).wait(DEADLINE_S)
    with pytest.raises(PeerGone):
        source.connect("d", "127.0.0.1", 1, timeout_s=1.0)
    source.send(source.connect("d", "127.0.0.1", script.port), 2, HERE, TOKENS).wait(DEADLINE_S)


@pytest.mark.parametrize("took_s", [float("nan"), float("inf"), -1.0])
def test_times_that_are_none_are_not_learned_from(pair, took_s):
    source, script = pair.own(SPEC), pair.script(SPEC)
    peering = source.connect("decode", "127.0.0.1", script.port)
    source.send(peering, 1, HERE, TOKENS, form=Form.STAGED).wait(DEADLINE_S)
    before = source.cost("decode")
    script.answers[said.Staged] = lambda staged: script.tell(
        said.Scattered(staged.move, staged.ticket, 0.0, took_s)
    )
    with pytest.raises(PeerGone, match="no message"):
        source.send(peering, 2, HERE, TOKENS, form=Form.STAGED).wait(DEADLINE_S)
    assert source.cost("decode") == before


def test_ranks_that_give_nothing_are_told_so(pair):
    ranks = tuple(dataclasses.replace(SPEC, heads=2, first_head=first) for first in (0, 2))
    source = pair.own(*ranks, here=(1,))
    # The other rank of the destination is in another process.
    script = pair.script(ranks[0], told_worker=ranks)
    with pytest.raises(Refused, match="from other ranks"):
        source.connect("decode", "127.0.0.1", script.port)


def test_closing_ends_what_is_under_way(pair):
    before = {thread for thread in threading.enumerate() if thread.name.startswith("kvferry")}
    source, script = pair.own(SPEC), pair.script(SPEC)
    peering = source.connect("decode", "127.0.0.1", script.port)
    departure = source.send(peering, 1, HERE, TOKENS, gate=LayerGate())
    source.close()
    source.close()
    with pytest.raises(PeerGone):
        departure.wait(0.0)
    with pytest.raises(Refused, match="closed"):
        source.connect("decode", "127.0.0.1", script.port)
    left = {thread for thread in threading.enumerate() if thread.name.startswith("kvferry")} - before
    assert {thread.name for thread in left} <= {"kvferry-local"}  # the script's
