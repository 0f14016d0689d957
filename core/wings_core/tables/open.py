"""Opens the catalog of a log's tables: pyiceberg's SQL catalog, or a REST one."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from wings_core.storage.objects.open import s3_properties
from wings_core.tables.catalog import Catalog

NAME = "wings"
"""The name of the catalog."""

CONNECT_SECONDS_MAX = 5.0
"""How long a REST catalog may take to take a connection."""

ANSWER_SECONDS_MAX = 30.0
"""How long a REST catalog may take for an answer, or for its next bytes."""


def open_catalog(
    warehouse: str,
    *,
    sqlite: Path | None = None,
    postgres: str | None = None,
    rest: str | None = None,
) -> Catalog | None:
    """Return the catalog of a log; None where pyiceberg is not installed.

    It is opened when it is first used: to import pyiceberg takes longer than all else of a start.

    Args:
        warehouse: The URL of the store of merged segments.
        sqlite: The file of pyiceberg's SQL catalog.
        postgres: The URL of the PostgreSQL database that has it instead.
        rest: The URL of a REST catalog, instead of these.
    """
    if find_spec("pyiceberg") is None:
        return None
    options = {"warehouse": warehouse, **s3_properties()}
    if rest is not None:
        options |= {"type": "rest", "uri": rest}
        return Catalog(partial(_open_rest, options), warehouse)
    if postgres is not None:
        from psycopg.conninfo import conninfo_to_dict

        from wings_core.metadata.postgres.connections import CONNECTION_DEFAULTS

        # All that libpq reads, several hosts too, as parameters of psycopg.
        parameters = {**CONNECTION_DEFAULTS, **conninfo_to_dict(postgres)}
        options |= {
            "type": "sql",
            "uri": f"postgresql+psycopg://?{urlencode(parameters)}",
            "pool_pre_ping": "true",
        }
    else:
        options |= {"type": "sql", "uri": f"sqlite:///{sqlite}"}
    return Catalog(partial(_open_sql, options), warehouse)


def _open_sql(options: dict[str, str]) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog(NAME, **options)


def _open_rest(options: dict[str, str]) -> Any:
    """Open a REST catalog whose answers are not waited for without end, as pyiceberg does."""
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.utils.config import Config, merge_config
    from requests import Session
    from requests.adapters import HTTPAdapter

    class BoundedAdapter(HTTPAdapter):
        def send(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["timeout"] = (CONNECT_SECONDS_MAX, ANSWER_SECONDS_MAX)
            return super().send(*args, **kwargs)

    class BoundedCatalog(RestCatalog):
        def _config_headers(self, session: Session) -> None:
            # The first step with a session: what is asked for while it is made has bounds too.
            for scheme in ("http://", "https://"):
                session.mount(scheme, BoundedAdapter())
            super()._config_headers(session)

    configured: Any = merge_config(Config().get_catalog_config(NAME) or {}, {**options})
    return BoundedCatalog(NAME, **configured)
