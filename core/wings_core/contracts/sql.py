"""SQL on the wire: the HTTP body, and the Flight ticket."""

import base64
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, WrapValidator

from wings_core.contracts.actions import ActionBody
from wings_core.contracts.messages import Message, Ticket, in_one_sentence
from wings_core.errors import InvalidArgument
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName

TIMEOUT_MS_MAX = 86_400_000
"""Greatest `timeout_ms`; the server's own bound applies as well."""

PARAMETERS_MAX = 10_000

Scalar = str | int | float | bool | None


def _parameters(value: object, handler: Callable[[object], object]) -> object:
    return in_one_sentence(
        value,
        handler,
        f"a list, or an object by name, of at most {PARAMETERS_MAX} strings, numbers, booleans "
        "and nulls",
    )


Parameters = Annotated[
    Annotated[tuple[Scalar, ...], Field(strict=False, max_length=PARAMETERS_MAX)]
    | Annotated[dict[str, Scalar], Field(max_length=PARAMETERS_MAX)],
    WrapValidator(_parameters),
]
"""Values of parameters: of `?` and `$1` in order, or of `$name` by name."""


TABLES_MAX = 16
"""Most tables sent with a statement."""

TABLE_NAME = r"[A-Za-z][A-Za-z0-9_]{0,62}"
"""Pattern of the names of such tables, which hide topics of the same name."""

Tables = Annotated[
    dict[Annotated[str, Field(pattern=f"^{TABLE_NAME}$")], str], Field(max_length=TABLES_MAX)
]

SYSTEM = "system"
"""Schema of the system tables."""

DEAD_LETTERS = "dead_letters"
"""System table of dead letters; `dead_letters/TOPIC` has those of one source."""

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
"""Schemas reserved by DuckDB, in lower case; a namespace of such a name is the schema `"/NAME"`."""


def schema_of(namespace: NamespaceName) -> str:
    """Return the schema of a namespace."""
    if namespace.tenant != DEFAULT_NAMESPACE.tenant:
        return f"{namespace.tenant}/{namespace.namespace}"
    name = namespace.namespace
    return f"/{name}" if name in RESERVED else name


class LiveBody(ActionBody):
    """The body of `sql-live`: a statement to serve as a follow."""

    sql: Annotated[str, Field(min_length=1)]
    namespace: str | None = None
    """Full name of the namespace of unqualified tables; None for the default one."""


class SqlBody(Message):
    """A statement."""

    sql: Annotated[str, Field(min_length=1, description="One statement that reads.")]
    parameters: Annotated[
        Parameters, Field(description="Values of `?` and `$1` in order, or of `$name` by name.")
    ] = ()
    namespace: Annotated[
        str | None,
        Field(description="Namespace of unqualified tables, `tenants/T/namespaces/N`."),
    ] = None
    timeout_ms: Annotated[
        int | None, Field(gt=0, le=TIMEOUT_MS_MAX, description="Timeout in milliseconds.")
    ] = None

    tables: Annotated[
        Tables | None,
        Field(description="Tables for this statement, by name: Arrow IPC streams in base64."),
    ] = None

    @property
    def sent_tables(self) -> dict[str, bytes]:
        """IPC streams of the tables sent with the statement, by name.

        Raises:
            InvalidArgument: A table is not base64.
        """
        sent = self.tables or {}
        try:
            return {name: base64.b64decode(text, validate=True) for name, text in sent.items()}
        except ValueError:
            raise InvalidArgument("tables: values must be Arrow IPC streams in base64") from None

    @property
    def default_namespace(self) -> NamespaceName:
        """Namespace of unqualified tables.

        Raises:
            InvalidName: The text is not a full name.
        """
        if self.namespace is None:
            return DEFAULT_NAMESPACE
        return NamespaceName.parse(self.namespace)

    @property
    def seconds_max(self) -> float | None:
        """Timeout in seconds; None for the server's bound."""
        return None if self.timeout_ms is None else self.timeout_ms / 1000


class SqlTicket(SqlBody, Ticket):
    """Ticket to run a statement and stream its rows; the batches have no metadata."""

    kind: Literal["sql"] = "sql"
