"""The process that is written into: kvferry's transport, a destination of handoffs and the bare library.

All over one memory. Driven by lines on stdin, each answered by a line of JSON behind an "@": the libraries
print as well.
"""

import json
import sys
import threading
from pathlib import Path

import xxhash

sys.path.insert(0, str(Path(__file__).parents[1]))

from transports_parts import pools
from transports_parts.memory import Memory
from transports_parts.raw import RAW, Raw

from kvferry.integrations.handoff.arrival import Arrival
from kvferry.integrations.handoff.destination import Destination
from kvferry.integrations.transports.registry import open_transport


class Side:
    """What the other process asks for."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.memory = Memory(nbytes)
        self.transport = open_transport(name, "peer")
        self.metadata = self.transport.register((self.memory.region,))
        self.raw: Raw = RAW[name]("raw-peer", self.memory.address, nbytes)
        self.destination: Destination | None = None
        self.page_size = 0
        self.arrivals: dict[int, Arrival] = {}
        self.pumping, self.ended = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.pump)
        self.thread.start()

    def pump(self) -> None:
        while not self.ended.is_set():
            if self.pumping.wait(0.2) and not self.raw.pump():
                return

    def answer(self, words: list[str]) -> object:
        match words:
            case ["raw"]:  # a move of the bare library comes: make progress without a pause
                self.pumping.set()
            case ["rest"]:
                self.pumping.clear()
            case ["ours"]:  # as a control channel says it
                self.transport.notices()
            case ["digest", nbytes]:
                return xxhash.xxh3_64_hexdigest(self.memory.bytes[: int(nbytes)].data)
            case ["destination", page_size]:
                self.page_size = int(page_size)
                pool = pools.pool(self.memory, self.page_size)
                transport = open_transport(self.transport.name, "destination")
                self.destination = Destination(transport, [pool.spec], {0: pool})
                return self.destination.port
            case ["no", "destination"] if self.destination is not None:
                self.destination.close()
                self.destination = None
            case ["expect", room] if self.destination is not None:
                place = pools.place(self.page_size, 2)
                self.arrivals[int(room)] = self.destination.expect(int(room), place, pools.TOKENS)
            case ["arrived", room] if self.destination is not None:
                self.destination.release(self.arrivals.pop(int(room)).wait(10.0).pages)
        return None

    def close(self) -> None:
        self.ended.set()
        self.thread.join()
        if self.destination is not None:
            self.destination.close()
        self.raw.close()
        self.transport.close()


def main(name: str, nbytes: str) -> None:
    side = Side(name, int(nbytes))
    say({"metadata": side.metadata.hex(), "session": side.raw.session, "address": side.memory.address})
    for line in sys.stdin:
        if line.strip() == "end":
            break
        say(side.answer(line.split()))
    side.close()


def say(what: object) -> None:
    print("@" + json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
