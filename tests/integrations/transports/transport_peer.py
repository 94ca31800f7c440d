"""A process that owns a pool in shared memory and can be written into; driven by lines on stdin."""

import json
import sys
import time
from multiprocessing import resource_tracker, shared_memory

import numpy as np

from kvferry.integrations.transports.base import Region
from kvferry.integrations.transports.registry import open_transport


def main(transport_name: str, agent: str, memory: str) -> None:
    shared = shared_memory.SharedMemory(memory)
    resource_tracker.unregister(shared._name, "shared_memory")  # the test that made it removes it
    pool = np.frombuffer(shared.buf, np.uint8)
    transport = open_transport(transport_name, agent)
    metadata = transport.register((Region(pool.ctypes.data, pool.size),))
    print("@" + json.dumps({"metadata": metadata.hex(), "address": pool.ctypes.data}), flush=True)
    for line in sys.stdin:
        if line.strip() == "notices":
            answer = [notice.hex() for notice in transport.notices()]
        elif line.strip() == "idle":
            used_s, began_s = time.process_time(), time.monotonic()
            time.sleep(1.5)
            answer = (time.process_time() - used_s) / (time.monotonic() - began_s)
        else:
            break
        print("@" + json.dumps(answer), flush=True)
    transport.close()


main(*sys.argv[1:])
