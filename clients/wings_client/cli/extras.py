"""Which extra of the distribution provides a missing module, and which modules a layer needs."""

from importlib.util import find_spec

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
"""By top-level module; every other one is the server's."""


_NEEDED = {
    "wings_server": (
        "duckdb",
        "fastapi",
        "grpc",
        "grpc_health",
        "msgspec",
        "prometheus_client",
        "pydantic_settings",
        "starlette",
        "structlog",
        "uvicorn",
        "xxhash",
    ),
    "wings_spark": ("pyspark",),
}
"""By layer, the modules of its extra."""


def missing_module(layer: str) -> str | None:
    """Return the first module that a layer of Wings needs and that is not installed, unimported.

    None where all are, and for any other package.
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
