"""SQL on the wire: the body over HTTP, and the ticket over Flight."""

import base64
from typing import Annotated, Literal

from pydantic import Field

from wings_core.contracts.actions import ActionBody
from wings_core.contracts.messages import Message, Ticket
from wings_core.errors import InvalidArgument
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName

TIMEOUT_MS_MAX = 86_400_000
"""The longest `timeout_ms`; the server's bound holds besides."""

PARAMETERS_MAX = 10_000

Scalar = str | int | float | bool | None

Parameters = (
    Annotated[tuple[Scalar, ...], Field(strict=False, max_length=PARAMETERS_MAX)]
    | Annotated[dict[str, Scalar], Field(max_length=PARAMETERS_MAX)]
)
"""Values of the parameters `?` and `$1`, in order, or of `$name`, by name."""


TABLES_MAX = 16
"""Tables that are sent along with a statement."""

TABLE_NAME = r"[A-Za-z][A-Za-z0-9_]{0,62}"
"""Names of such tables; one hides a topic of its name."""

Tables = Annotated[
    dict[Annotated[str, Field(pattern=f"^{TABLE_NAME}$")], str], Field(max_length=TABLES_MAX)
]

SYSTEM = "system"
"""The schema of the system tables."""

DEAD_LETTERS = "dead_letters"
"""The system table of dead letters; `dead_letters/TOPIC` has those of one source."""

SYSTEM_TABLES = (
    "topics",
    "partitions",
    "segments",
    "consumers",
    "groups",
    DEAD_LETTERS,
    "nodes",
    "files",
)

RESERVED = frozenset({"information_schema", "main", "pg_catalog", "system", "temp", "wings"})
"""Schemas that mean something else to DuckDB, lower case: a namespace so named is `"/NAME"`."""


def schema_of(namespace: NamespaceName) -> str:
    """Return the schema that a namespace is."""
    if namespace.tenant != DEFAULT_NAMESPACE.tenant:
        return f"{namespace.tenant}/{namespace.namespace}"
    name = namespace.namespace
    return f"/{name}" if name in RESERVED else name


class LiveBody(ActionBody):
    """A statement that a follow is to serve: the body of `sql-live`."""

    sql: Annotated[str, Field(min_length=1)]
    namespace: str | None = None
    """The full name of the namespace of a table without a schema; None: the default one."""


class SqlBody(Message):
    """A statement."""

    sql: Annotated[str, Field(min_length=1, description="One statement that reads.")]
    parameters: Annotated[
        Parameters, Field(description="Values of `?` and `$1`, in order, or of `$name`, by name.")
    ] = ()
    namespace: Annotated[
        str | None,
        Field(description="Of tables without a schema, `tenants/T/namespaces/N`; default: that."),
    ] = None
    timeout_ms: Annotated[
        int | None, Field(gt=0, le=TIMEOUT_MS_MAX, description="How long it may take.")
    ] = None

    tables: Annotated[
        Tables | None,
        Field(description="Tables for this statement, by name: Arrow IPC streams in base64."),
    ] = None

    @property
    def sent_tables(self) -> dict[str, bytes]:
        """The streams of the tables that came along.

        Raises:
            InvalidArgument: One is not base64.
        """
        sent = self.tables or {}
        try:
            return {name: base64.b64decode(text, validate=True) for name, text in sent.items()}
        except ValueError:
            raise InvalidArgument("tables: a value is an Arrow IPC stream in base64") from None

    @property
    def default_namespace(self) -> NamespaceName:
        """The namespace of tables that are named without a schema.

        Raises:
            InvalidName: It is no full name.
        """
        if self.namespace is None:
            return DEFAULT_NAMESPACE
        return NamespaceName.parse(self.namespace)

    @property
    def seconds_max(self) -> float | None:
        """How long it may take; None: as long as any may."""
        return None if self.timeout_ms is None else self.timeout_ms / 1000


class SqlTicket(SqlBody, Ticket):
    """Run a statement, and stream its rows; the batches carry no metadata."""

    kind: Literal["sql"] = "sql"
