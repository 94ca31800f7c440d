"""The bootstrap registries of a prefill worker: one per transport, each saying which it is."""

import importlib
import logging
import socket
from typing import Any

from kvferry.integrations.sglang.plugin.dual.names import PRIMARY, ROUTE, SECOND

log = logging.getLogger("kvferry.plugin")


def registry_class(offset: int) -> type[Any]:
    """SGLang's registry for Mooncake, which starts one for NIXL `offset` ports higher beside it."""
    web: Any = importlib.import_module("aiohttp.web")  # SGLang's own registry is made of it
    mooncake: Any = importlib.import_module("sglang.srt.disaggregation.mooncake.conn")
    nixl: Any = importlib.import_module("sglang.srt.disaggregation.nixl.conn")

    class SecondRegistry(nixl.NixlKVBootstrapServer):  # type: ignore[misc]
        """Rows of NIXL's manager only."""

        def _setup_routes(self) -> None:
            super()._setup_routes()
            self.app.router.add_get(ROUTE, self._tell)

        async def _tell(self, _: Any) -> Any:
            return web.json_response({"transport": SECOND})

    class Registry(mooncake.MooncakeKVBootstrapServer):  # type: ignore[misc]
        """Also tells this worker's schedulers whether the second one is theirs to register with."""

        def __init__(self, host: str, port: int) -> None:
            self.second: Any = None
            self.second_port = port + offset
            self.why = _why_taken(host, self.second_port)
            if not self.why:
                try:
                    self.second = SecondRegistry(host, self.second_port)
                except Exception as error:  # the first one must start whatever befalls this
                    log.exception("no registry for %s", SECOND)
                    self.why = f"its registry could not start: {type(error).__name__}: {error}"
            super().__init__(host, port)

        def _setup_routes(self) -> None:
            super()._setup_routes()
            self.app.router.add_get(ROUTE, self._tell)

        async def _tell(self, _: Any) -> Any:
            told: dict[str, Any] = {"transport": PRIMARY, SECOND: self.second_port}
            if self.second is None or not self.second.thread.is_alive():
                told |= {
                    SECOND: None,
                    "why": self.why or f"the registry on port {self.second_port} has ended",
                }
            return web.json_response(told)

        def close(self) -> None:
            if self.second is not None:
                self.second.close()
            super().close()

    return Registry


def _why_taken(host: str, port: int) -> str:
    """A neighbour's registry on that port would take rows that are not its own."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except (OSError, OverflowError) as error:
            log.warning("no registry for %s on %s:%d: %s", SECOND, host, port, error)
            return f"port {port} cannot be had: {error}"
    return ""
