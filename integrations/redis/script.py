"""Lua scripts, sent by their hash."""

import hashlib
from pathlib import Path
from typing import Any

from redis.exceptions import NoScriptError


class Script:
    """The concatenation of packaged .lua files, in order."""

    def __init__(self, *names: str) -> None:
        folder = Path(__file__).parent  # importlib.resources cannot read editable namespace packages
        self.source = "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
        self._sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Any, keys: list[str], arguments: list[bytes]) -> Any:
        """EVALSHA, or EVAL on a server that does not have the script (yet, or any more)."""
        try:
            return await client.evalsha(self._sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return await client.eval(self.source, len(keys), *keys, *arguments)
