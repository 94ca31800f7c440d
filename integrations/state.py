"""Where kvferry keeps what outlives a process: the request log and the spool."""

import os
from pathlib import Path


def state_dir() -> Path:
    """`$KVFERRY_STATE_DIR`, else `$XDG_STATE_HOME/kvferry`, else `~/.local/state/kvferry`; not created."""
    if own := os.environ.get("KVFERRY_STATE_DIR"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".local" / "state") / "kvferry"


def log_path() -> Path:
    """The request log that `kvferry serve` writes and `kvferry logs` reads by default."""
    return state_dir() / "decisions.jsonl"
