"""Opening the catalog of a log's tables: pyiceberg's SQL catalog, or a REST catalog."""

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
"""Timeout for connecting to a REST catalog."""

ANSWER_SECONDS_MAX = 30.0
"""Timeout for a REST catalog's response, and for each further read of it."""


def open_catalog(
    warehouse: str,
    *,
    sqlite: Path | None = None,
    postgres: str | None = None,
    rest: str | None = None,
) -> Catalog | None:
    """Return the catalog of a log; None if pyiceberg is not installed.

    It is opened on first use: importing pyiceberg takes longer than the rest of a start.

    Args:
        warehouse: URL of the store of merged segments.
        sqlite: File of pyiceberg's SQL catalog.
        postgres: URL of a PostgreSQL database for the SQL catalog, instead of `sqlite`.
        rest: URL of a REST catalog, instead of either.
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

        # Passed as parameters to psycopg: all of libpq's options work, several hosts included.
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
    """Open a REST catalog with timeouts, which pyiceberg lacks."""
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
            # Called first with the new session, so that requests of the constructor have timeouts
            # too.
            for scheme in ("http://", "https://"):
                session.mount(scheme, BoundedAdapter())
            super()._config_headers(session)

    configured: Any = merge_config(Config().get_catalog_config(NAME) or {}, {**options})
    return BoundedCatalog(NAME, **configured)
