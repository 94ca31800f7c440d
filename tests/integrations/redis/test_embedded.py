"""The private Valkey: it starts without a URL, comes back when it died, and never outlives its router."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.sink import Sink

_OPEN = """
import asyncio
from kvferry.integrations.redis.connection import open_store
async def main():
    store = await open_store()
    info = await store.client.info("server")
    print(info["process_id"], store.embedded.socket, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


async def test_it_is_private_and_gone_when_closed() -> None:
    store = await open_store()
    assert store.embedded is not None
    socket = store.embedded.socket
    pid = (await store.client.info("server"))["process_id"]
    assert socket.parent.stat().st_mode & 0o077 == 0
    assert (await store.client.config_get("port"))["port"] == "0"
    await store.close()
    assert not alive(pid)
    assert not socket.parent.exists()


async def test_a_killed_router_leaves_no_orphan(eventually) -> None:
    router = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", _OPEN], stdout=subprocess.PIPE, text=True
    )
    assert router.stdout is not None
    pid, socket = (await asyncio.to_thread(router.stdout.readline)).split()
    assert alive(int(pid))
    router.send_signal(signal.SIGKILL)
    router.wait()
    router.stdout.close()
    await eventually(lambda: not alive(int(pid)) and not Path(socket).parent.exists())


async def test_a_died_server_is_started_again_by_the_sink(tmp_path: Path, eventually) -> None:
    from kvferry.integrations.log.record import Outcome

    store = await open_store()
    sink = Sink(store, router="r1", state_dir=tmp_path, retry_s=0.05)
    sink.start()
    sink.outcome("a", Outcome())
    await eventually(lambda: sink.delivered == 1)
    os.kill((await store.client.info("server"))["process_id"], signal.SIGKILL)
    await eventually(lambda: not store.embedded.alive)
    sink.outcome("b", Outcome())
    await eventually(lambda: sink.delivered == 2)
    assert await store.client.xlen(store.keys.outcomes) == 1
    await sink.close()
    await store.close()
