"""What the router cannot know of a worker for want of telemetry from inside it."""

from kvferry.integrations.log.record import Missing
from kvferry.integrations.sglang.plugin_info import PluginInfo
from kvferry.policy.worker import Role, Worker

_OF_ROLE = {
    Role.PREFILL: ("wait for the bootstrap", "bytes and descriptors moved", "time in the transport"),
    Role.DECODE: ("wait for KV room", "decode queue", "retractions"),
    Role.COLOCATED: ("first token of an unstreamed answer", "retractions"),
}
_HINT: dict[Missing | None, str] = {
    "no_plugin": " (pip install 'kvferry[worker]' where it runs)",
    "unheard": " (does its KVFERRY_REDIS name this router's store?)",
}


def unknown(worker: Worker, silence: Missing | None) -> list[str]:
    """`silence`: why nothing is told, None when something is."""
    if silence is None:
        return []
    stalls = ("stalls by local prefills",) if worker.role is Role.DECODE and worker.local_prefill else ()
    return [*_OF_ROLE[worker.role], *stalls]


def introduction(worker: Worker, plugin: PluginInfo, silence: Missing | None) -> str:
    """One line for the log when a worker comes up."""
    if not plugin.version:
        about = "no kvferry plugin"
    else:
        about = f"kvferry plugin {plugin.version}: {plugin.summary}"
    return f"{worker.id}: {about}{not_known(worker, silence)}"


def not_known(worker: Worker, silence: Missing | None) -> str:
    """`; not known: ... (what helps)`, or nothing."""
    names = unknown(worker, silence)
    return f"; not known: {', '.join(names)}{_HINT.get(silence, '')}" if names else ""
