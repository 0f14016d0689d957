"""Environment of the command: extras that are installed, and the directory of its state."""

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_EXTRAS = {
    "boto3": "objects",
    "obstore": "objects",
    "opentelemetry": "otel",
    "prompt_toolkit": "cli",
    "psycopg": "postgres",
    "pyspark": "spark",
    "rich": "cli",
    "typer": "cli",
}
"""Extras by top-level module; all other modules belong to the server's."""


_NEEDED = {
    "wings_server": (
        "duckdb",
        "fastapi",
        "grpc",
        "grpc_health",
        "msgspec",
        "prometheus_client",
        "starlette",
        "structlog",
        "uvicorn",
        "xxhash",
    ),
    "wings_spark": ("pyspark",),
}
"""Modules of the extra of each layer."""


@cache  # For a layer's many commands in the help.
def missing_module(layer: str) -> str | None:
    """Return the first missing module that a layer of Wings needs, without importing any.

    Returns None if all are installed, and for any other package.
    """
    return next((name for name in _NEEDED.get(layer, ()) if not _is_installed(name)), None)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # An import hook may raise it instead.
        return False


def install_hint(module: str) -> str:
    """Return the command that installs a missing module, with the others of its extra."""
    extra = _EXTRAS.get(module.partition(".")[0], "server")
    return f"pip install 'wings-flight[{extra}]'"


def configuration_file() -> Path:
    """Return `$XDG_CONFIG_HOME/wings.toml`, by default below `~/.config`; it may not exist."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "wings.toml"


def state_directory() -> Path:
    """Return `$XDG_STATE_HOME/wings`, by default below `~/.local/state`; it may not exist."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "wings"
