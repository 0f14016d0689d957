"""Names: which topic a table of SQL is, and which table a topic.

A namespace is a schema: of the tenant `default` by its id, of another tenant `TENANT/NAMESPACE`,
and one whose id means something else to SQL, `/NAME`.
"""

from wings_core.contracts.sql import RESERVED
from wings_core.errors import InvalidName, InvalidSql
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName, TopicName
from wings_core.sql.statement import TableName


def namespace_of(schema: str) -> NamespaceName:
    """Return the namespace that a schema is.

    Raises:
        InvalidSql: It can be none.
    """
    if schema in RESERVED:
        raise InvalidSql(f"there is no schema {schema!r}; a namespace of that name is '/{schema}'")
    tenant, slash, name = schema.rpartition("/")
    if not slash or not tenant:
        tenant = DEFAULT_NAMESPACE.tenant
    try:
        return NamespaceName.parse(f"tenants/{tenant}/namespaces/{name}")
    except InvalidName:
        raise InvalidSql(f"there is no schema {schema!r:.80}") from None


def topic_of(table: TableName, namespace: NamespaceName) -> TopicName:
    """Return the topic that a table is.

    Args:
        table: As a statement names it.
        namespace: Of names without a schema.

    Raises:
        InvalidSql: It can be none.
    """
    found = namespace_of(table.schema) if table.schema else namespace
    try:
        return found.topic(table.table)
    except InvalidName:
        raise InvalidSql(f"there is no table {table.table!r:.80}: it is no topic's id") from None
