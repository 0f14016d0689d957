"""Which extra of the distribution provides a missing module."""

_EXTRAS = {
    "boto3": "objects",
    "obstore": "objects",
    "psycopg": "postgres",
    "pyspark": "spark",
    "rich": "cli",
    "typer": "cli",
}
"""By top-level module; every other one is the server's."""


def install_hint(module: str) -> str:
    """Return the command that installs a missing module, with the others of its extra."""
    extra = _EXTRAS.get(module.partition(".")[0], "server")
    return f"pip install 'wings-flight[{extra}]'"
