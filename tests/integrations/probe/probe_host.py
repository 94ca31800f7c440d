"""An agent in a process of its own; its port is its first line of output."""

import asyncio
import json
import sys

from kvferry.integrations.probe.agent import serve

asyncio.run(serve(ready=lambda port: print(port, flush=True), **json.loads(sys.argv[1])))
