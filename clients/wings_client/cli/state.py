"""The directory of state that commands keep for later runs."""

import os
from pathlib import Path


def state_directory() -> Path:
    """Return `$XDG_STATE_HOME/wings`, by default below `~/.local/state`; it may not exist."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "wings"
