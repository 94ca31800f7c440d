"""What SGLang's prefill/decode path needs to run without a GPU, as hooks of an SGLang plugin.

SGLang loads this (entry point `sglang.srt.plugins`) in every process of every worker of the environment that
kvferry is installed in; it acts only in the workers that kvferry starts on the CPU. Tied to SGLang 0.5.23.
"""

import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

ENABLE_ENV = "KVFERRY_LOCAL_CPU"
TRANSPORT_ENV = "KVFERRY_LOCAL_TRANSPORT"
NOTIFY_EVERY_S = 0.002

_UTILS = "sglang.srt.disaggregation.utils"
_MOONCAKE = "sglang.srt.disaggregation.mooncake.conn"
_NIXL = "sglang.srt.disaggregation.nixl.conn"


def load() -> None:
    """Register the CPU hooks, if this process is a scheduler of a worker started by kvferry."""
    if os.environ.get(ENABLE_ENV) != "1" or "sglang.srt.managers.scheduler" not in sys.modules:
        return
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    hooks: list[tuple[str, str, Callable[..., Any], Any]] = [
        (_UTILS, "get_kv_class", send_numpy_indices, registry.HookType.AFTER),
    ]
    if os.environ.get(TRANSPORT_ENV):  # with KVFERRY_DUAL_TRANSPORT, NIXL runs in Mooncake's workers too
        hooks += [
            (_NIXL, "_normalize_kv_mem_kinds", label_dram, registry.HookType.AROUND),
            (_NIXL, "NixlKVManager.__init__", tick_instead_of_spin, registry.HookType.AROUND),
        ]
    for module, name, hook, kind in hooks:
        if _exists(module, name):
            registry.HookRegistry.register(f"{module}.{name}", hook, kind)
        else:
            logger.warning(
                "kvferry: no %s in %s: this SGLang differs from 0.5.23, hook left out", name, module
            )


def _exists(module: str, name: str) -> bool:
    try:
        found: object = importlib.import_module(module)
    except ImportError:
        return False
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None


def send_numpy_indices(result: Any, *args: object, **kwargs: object) -> None:
    """Clear the Mooncake sender's `supports_host_tensor_indices`.

    With it SGLang stages page indices in pinned memory behind a torch.cuda.Event; without it, in numpy.
    Another plugin may have put something of its own in the place of that class, which `result` then is.
    """
    if getattr(args[-1] if args else None, "value", "") == "sender":
        sender = importlib.import_module(_MOONCAKE).MooncakeKVSender
        sender.supports_host_tensor_indices = False


def label_dram(original: Callable[..., list[str]], kinds: list[str] | None, expected_len: int) -> list[str]:
    """Label every KV buffer DRAM; SGLang takes them for VRAM, which NIXL then looks for on a GPU."""
    if kinds is not None:
        original(kinds, expected_len)  # for its checks
    return ["DRAM"] * expected_len


def tick_instead_of_spin(original: Callable[..., None], manager: Any, *args: Any, **kwargs: Any) -> None:
    """Build the NIXL agent without its progress thread, which keeps a core busy even when idle.

    SGLang's prefill side polls its transfers, its decode side never calls the agent: so poll it here.
    """
    api: Any = importlib.import_module("nixl._api")
    make_config = api.nixl_agent_config
    api.nixl_agent_config = lambda **options: make_config(**{"enable_prog_thread": False, **options})
    try:
        original(manager, *args, **kwargs)
    finally:
        api.nixl_agent_config = make_config

    def tick() -> None:
        while True:
            manager.agent.get_new_notifs()
            time.sleep(NOTIFY_EVERY_S)

    threading.Thread(target=tick, daemon=True, name="kvferry-nixl-tick").start()
