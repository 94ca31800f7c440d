from kvferry.integrations.redis.streams import Entry, Streams


async def test_entries_come_back_in_order_over_several_pages(store) -> None:
    streams = Streams(store)
    sent = [Entry("decision", f"id-{n}", b'{"n":%d}' % n) for n in range(25)]
    await streams.add(sent)
    await streams.add([Entry("outcome", "id-0", b"{}")])
    read = [item async for item in streams.read("decision", page=10)]
    assert [entry for _, entry in read] == sent
    rest = [entry async for _, entry in streams.read("decision", after=read[19][0], page=10)]
    assert rest == sent[20:]
    assert [entry async for _, entry in streams.read("outcome")] == [Entry("outcome", "id-0", b"{}")]


async def test_a_stream_is_capped(store) -> None:
    streams = Streams(store, maxlen=100)
    for start in range(0, 1000, 250):
        await streams.add([Entry("decision", str(n), b"{}") for n in range(start, start + 250)])
    length = await store.client.xlen(store.keys.decisions)
    assert 100 <= length < 500
    newest = [entry.id async for _, entry in streams.read("decision")][-1]
    assert newest == "999"


async def test_waiting_sees_what_comes_and_ends_without_it(store) -> None:
    streams = Streams(store)
    await streams.add([Entry("decision", "a", b"1")])
    ((first_id, _),) = [item async for item in streams.read("decision")]
    assert await streams.wait("decision", after=first_id, block_s=0.02) == []
    await streams.add([Entry("decision", "b", b"2")])
    assert [entry.id for _, entry in await streams.wait("decision", after=first_id, block_s=5)] == ["b"]
