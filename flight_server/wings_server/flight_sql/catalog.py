"""The catalog for Flight SQL: one catalog, namespaces as schemas, topics as tables.

Facts about the server for drivers are a value for each number of the enum `SqlInfo`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, cast

import pyarrow as pa
from google.protobuf.message import Message

from wings_core.contracts.sql import SYSTEM, schema_of
from wings_core.errors import InvalidArgument
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.protocol.flight_sql import flight_sql_pb2 as pb
from wings_core.security.principal import Principal
from wings_core.security.rights import Right
from wings_core.sql.statement import STATEMENT_BYTES_MAX
from wings_core.sql.system import SYSTEM_TABLES
from wings_core.sql.topic_table import shown
from wings_core.sql_process.interface import CATALOG

TABLE = "TABLE"

SYSTEM_TABLE = "SYSTEM TABLE"

PATTERN_LENGTH_MAX = 1024
"""Longest pattern of names, in characters."""

Rows = Sequence[tuple[Any, ...]]

_KINDS = {
    "string_value": pa.string(),
    "bool_value": pa.bool_(),
    "bigint_value": pa.int64(),
    "int32_bitmask": pa.int32(),
    "string_list": pa.list_(pa.string()),
    "int32_to_int32_list_map": pa.map_(pa.int32(), pa.list_(pa.int32())),
}
"""Kinds of values of the union, in order."""

_TEXTS: Mapping[int, str | None] = {
    0: "Wings",
    1: version("wings-flight"),
    2: pa.__version__,
    6: None,  # Versions of Substrait, which is not supported.
    7: None,
    504: '"',  # Quotes a name.
    513: "\\",  # Escapes `%` and `_` in a pattern.
    514: "",  # Further letters of names that need no quotes.
    529: "schema",
    530: "procedure",
    531: "catalog",
}

_BOOLS: Mapping[int, bool] = {
    3: True,  # Read only: SQL is; bulk ingest pushes.
    4: True,  # SQL.
    5: False,  # Substrait.
    9: True,  # CancelQuery.
    10: True,  # Bulk ingest.
    11: False,  # Of it in transactions.
    500: False,  # CREATE and DROP of catalogs, schemas, tables.
    501: False,
    502: False,
    506: True,  # All tables may be selected from.
    515: True,  # Aliases of columns.
    516: True,  # NULL with a text is NULL.
    518: True,  # Aliases of tables,
    519: False,  # which may be the names of tables too.
    520: True,  # Expressions in ORDER BY,
    521: True,  # and columns that are not selected.
    523: True,  # LIKE ... ESCAPE.
    524: True,  # Columns without NULL.
    527: False,  # Referential integrity.
    532: True,  # The catalog comes first in a name.
    536: False,  # SELECT FOR UPDATE.
    537: False,  # Stored procedures.
    539: True,  # Correlated subqueries.
    556: True,  # What bounds a row counts its blobs too.
    563: False,  # Transactions, and what is done in them.
    565: False,
    566: False,
    572: False,  # Batches of updates.
    573: False,  # Savepoints.
    574: False,  # Procedures with named parameters.
    575: False,  # Updates of large objects.
    576: False,  # Calls of stored functions.
}

_BIGINTS: Mapping[int, int] = {
    # The comments of the enum call these four int32; the drivers of JDBC and ODBC read bigints.
    503: 1,  # Names are of any case, quoted or not.
    505: 1,
    507: 3,  # NULL comes last.
    562: 0,  # No isolation of transactions.
    **dict.fromkeys([*range(541, 556), *range(558, 562)], 0),  # No limit, or none that is known.
    557: STATEMENT_BYTES_MAX,
}

_BITMASKS: Mapping[int, int] = {
    8: 0,  # No transactions.
    100: 0,  # No time-outs of handles and transactions.
    101: 0,
    522: 0b11,  # GROUP BY, also of what is not selected.
    525: 0b111,  # Grammar of ODBC,
    526: 0b1,  # and of SQL-92: entry level.
    528: 0b110,  # Outer joins, limited and full: the drivers read bits, not the enum's ordinal.
    533: 0,  # Schemas and catalogs in procedures, indexes and privileges.
    534: 0,
    535: 0,  # UPDATE and DELETE at a cursor.
    538: 0b1111,  # Subqueries: compared, EXISTS, IN, and with ANY or ALL.
    540: 0b11,  # UNION and UNION ALL.
    564: 0b1,  # Of transactions: no isolation.
    567: 0b10,  # Results are read forward only,
    568: 0,
    569: 0b10,  # and are read only.
    570: 0,
    571: 0,
}

_WORDS: Mapping[int, str] = {
    # Reserved words that the standard of 2003 lacks.
    508: "ANALYSE ANALYZE LAMBDA LIMIT OFFSET PIVOT PIVOT_LONGER PIVOT_WIDER PLACING QUALIFY"
    " RETURNING SHOW SUMMARIZE UNPIVOT VARIADIC",
    # Functions of ODBC of the same name and meaning: of numbers, texts, the system, times.
    509: "ABS ACOS ASIN ATAN ATAN2 CEILING COS DEGREES EXP FLOOR LOG10 MOD PI POWER RADIANS ROUND"
    " SIGN SIN SQRT TAN",
    510: "ASCII BIT_LENGTH CHAR_LENGTH CHARACTER_LENGTH CONCAT LCASE LEFT LENGTH LTRIM"
    " OCTET_LENGTH POSITION REPLACE RIGHT RTRIM SUBSTRING UCASE",
    511: "IFNULL",
    512: "CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP DAYNAME DAYOFMONTH DAYOFYEAR HOUR MINUTE"
    " MONTH MONTHNAME NOW QUARTER SECOND YEAR",
}

_MAPS: Mapping[int, Mapping[int, list[int]]] = {
    517: {},  # There is CAST, but no function CONVERT.
}

_INFO: Mapping[int, tuple[int, Any]] = {
    number: (kind, value)
    for kind, values in enumerate(
        (
            _TEXTS,
            _BOOLS,
            _BIGINTS,
            _BITMASKS,
            {number: words.split() for number, words in _WORDS.items()},
            {number: list(pairs.items()) for number, pairs in _MAPS.items()},
        )
    )
    for number, value in values.items()
}
"""Index of the kind, and the value, by number."""


def _schema(*fields: tuple[str, pa.DataType] | tuple[str, pa.DataType, bool]) -> pa.Schema:
    return pa.schema([cast("Any", pa).field(*field) for field in fields])


_TEXT = pa.string()


_CATALOGS = _schema(("catalog_name", _TEXT, False))


_DB_SCHEMAS = _schema(("catalog_name", _TEXT), ("db_schema_name", _TEXT, False))


_TABLES = _schema(
    ("catalog_name", _TEXT),
    ("db_schema_name", _TEXT),
    ("table_name", _TEXT, False),
    ("table_type", _TEXT, False),
)


_TABLE_TYPES = _schema(("table_type", _TEXT, False))


_PRIMARY_KEYS = _schema(
    ("catalog_name", _TEXT),
    ("db_schema_name", _TEXT),
    ("table_name", _TEXT, False),
    ("column_name", _TEXT, False),
    ("key_name", _TEXT),
    ("key_sequence", pa.int32(), False),
)


_FOREIGN_KEYS = _schema(
    *((f"{key}_{name}", _TEXT) for key in ("pk", "fk") for name in (
        "catalog_name", "db_schema_name", "table_name", "column_name")),
    ("key_sequence", pa.int32(), False),
    ("fk_key_name", _TEXT),
    ("pk_key_name", _TEXT),
    ("update_rule", pa.uint8(), False),
    ("delete_rule", pa.uint8(), False),
)  # fmt: skip


_XDBC_TYPES = _schema(
    ("type_name", _TEXT, False),
    ("data_type", pa.int32(), False),
    ("column_size", pa.int32()),
    ("literal_prefix", _TEXT),
    ("literal_suffix", _TEXT),
    ("create_params", pa.list_(pa.field("item", _TEXT, False))),
    ("nullable", pa.int32(), False),
    ("case_sensitive", pa.bool_(), False),
    ("searchable", pa.int32(), False),
    ("unsigned_attribute", pa.bool_()),
    ("fixed_prec_scale", pa.bool_(), False),
    ("auto_increment", pa.bool_()),
    ("local_type_name", _TEXT),
    ("minimum_scale", pa.int32()),
    ("maximum_scale", pa.int32()),
    ("sql_data_type", pa.int32(), False),
    ("datetime_subcode", pa.int32()),
    ("num_prec_radix", pa.int32()),
    ("interval_precision", pa.int32()),
)


_TYPES: Sequence[tuple[str, int, int | None, str | None, int | None, int | None]] = (
    # Name, number of JDBC's type, size, quote, number without the subtype, radix.
    ("BLOB", -3, None, "'", -3, None),
    ("BIGINT", -5, 19, None, -5, 10),
    ("UBIGINT", -5, 20, None, -5, 10),
    ("BOOLEAN", -7, 1, None, -7, None),
    ("DECIMAL", 3, 38, None, 3, 10),
    ("INTEGER", 4, 10, None, 4, 10),
    ("SMALLINT", 5, 5, None, 5, 10),
    ("FLOAT", 7, 24, None, 7, 2),
    ("DOUBLE", 8, 53, None, 8, 2),
    ("VARCHAR", 12, None, "'", 12, None),
    ("DATE", 91, 10, "'", 9, None),
    ("TIME", 92, 15, "'", 9, None),
    ("TIMESTAMP", 93, 26, "'", 9, None),
    ("TIMESTAMP WITH TIME ZONE", 93, 32, "'", 9, None),
)


def table_of(command: Message, log: Log, principal: Principal) -> pa.Table | None:
    """Return the rows for a catalog command; None for other commands.

    Args:
        command: The command.
        log: The log whose topics are the tables.
        principal: The caller; only tables that it may read are returned.
    """
    make = _TABLES_OF.get(type(command))
    return None if make is None else make(command, log, principal)


def _filled(schema: pa.Schema, rows: Rows) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [
        pa.array(list(values), schema.field(index).type) for index, values in enumerate(columns)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _catalogs(command: Any, log: Log, principal: Principal) -> pa.Table:
    del command, log, principal
    return _filled(_CATALOGS, [(CATALOG,)])


def _db_schemas(command: Any, log: Log, principal: Principal) -> pa.Table:
    if not _is_ours(command):
        return _filled(_DB_SCHEMAS, [])
    matches = _matcher(command, "db_schema_filter_pattern")
    names = sorted(
        schema_of(namespace.name)
        for namespace in log.admin.list_namespaces()
        if principal.may_see_namespace(namespace.name)
    )
    schemas = sorted([*names, SYSTEM])
    return _filled(_DB_SCHEMAS, [(CATALOG, name) for name in schemas if matches(name)])


def _tables(command: Any, log: Log, principal: Principal) -> pa.Table:
    schema = _TABLES
    if command.include_schema:
        schema = schema.append(pa.field("table_schema", pa.binary(), False))
    found: list[tuple[Any, ...]] = []
    for place, topic in _wanted_topics(command, log, principal):
        row = (CATALOG, place, topic.name.topic, TABLE)
        found.append((*row, shown_schema(topic)) if command.include_schema else row)
    for name, columns in _wanted_system_tables(command):
        row = (CATALOG, SYSTEM, name, SYSTEM_TABLE)
        serialized = columns.serialize().to_pybytes()
        found.append((*row, serialized) if command.include_schema else row)
    return _filled(schema, sorted(found))


def _wanted_system_tables(command: Any) -> Iterator[tuple[str, pa.Schema]]:
    types = command.table_types
    if not _is_ours(command) or (types and SYSTEM_TABLE not in types):
        return
    if _matcher(command, "db_schema_filter_pattern")(SYSTEM):
        matches = _matcher(command, "table_name_filter_pattern")
        for name, table in SYSTEM_TABLES.items():
            if matches(name):
                yield name, table.schema


def _wanted_topics(command: Any, log: Log, principal: Principal) -> Iterator[tuple[str, Topic]]:
    if not _is_ours(command) or (command.table_types and TABLE not in command.table_types):
        return
    in_schema = _matcher(command, "db_schema_filter_pattern")
    in_table = _matcher(command, "table_name_filter_pattern")
    for topic in principal.topics(log.admin, Right.READ):
        place = schema_of(topic.name.namespace)
        if in_schema(place) and in_table(topic.name.topic):
            yield place, topic


def shown_schema(topic: Topic) -> bytes:
    """Return the columns of a topic's table, as an IPC message."""
    columns = shown(topic).columns.values()
    fields = [pa.field(column.name, column.field.type) for column in columns]
    return pa.schema(fields).serialize().to_pybytes()


def _is_ours(command: Any) -> bool:
    return not command.HasField("catalog") or command.catalog == CATALOG


def _matcher(command: Any, name: str) -> Callable[[str], bool]:
    """Return a matcher for a pattern with the wildcards `%` and `_`.

    Raises:
        InvalidArgument: The pattern is too long.
    """
    if not command.HasField(name):
        return lambda _: True
    given: str = getattr(command, name)
    if len(given) > PATTERN_LENGTH_MAX:
        raise InvalidArgument(f"key {name!r}: at most {PATTERN_LENGTH_MAX} characters")
    between = [""]
    for part in re.split(r"(\\.|[%_])", given, flags=re.DOTALL):
        if part == "%":
            between.append("")
        else:
            plain = re.escape(part[1:] if part.startswith("\\") else part)
            between[-1] += "." if part == "_" else plain
    *others, last = between
    # Atomic groups match each part at its first position, without exponential backtracking.
    rest = "".join(f"(?>.*?{part})" for part in others[1:])
    compiled = re.compile(f"{others[0]}{rest}.*{last}" if others else last, re.DOTALL)
    return lambda text: compiled.fullmatch(text) is not None


def _table_types(command: Any, log: Log, principal: Principal) -> pa.Table:
    del command, log, principal
    return _filled(_TABLE_TYPES, [(SYSTEM_TABLE,), (TABLE,)])


def _no_keys(schema: pa.Schema) -> Callable[[Any, Log, Principal], pa.Table]:
    return lambda _, __, ___: _filled(schema, [])


def _xdbc_types(command: Any, log: Log, principal: Principal) -> pa.Table:
    del log, principal
    rows = [
        (name, number, size, quote, quote, None, 1, name == "VARCHAR", 3,
         None if radix is None else name.startswith("U"), False, None, name,
         0 if name == "DECIMAL" else None, 38 if name == "DECIMAL" else None,
         plain, number - 90 if plain == 9 else None, radix, None)
        for name, number, size, quote, plain, radix in sorted(_TYPES, key=lambda row: row[1])
        if not command.HasField("data_type") or command.data_type == number
    ]  # fmt: skip
    return _filled(_XDBC_TYPES, rows)


def _sql_info(command: Any, log: Log, principal: Principal) -> pa.Table:
    del log, principal
    return sql_info(command.info)


_TABLES_OF: Mapping[type[Message], Callable[[Any, Log, Principal], pa.Table]] = {
    pb.CommandGetCatalogs: _catalogs,
    pb.CommandGetDbSchemas: _db_schemas,
    pb.CommandGetTables: _tables,
    pb.CommandGetTableTypes: _table_types,
    pb.CommandGetSqlInfo: _sql_info,
    pb.CommandGetXdbcTypeInfo: _xdbc_types,
    pb.CommandGetPrimaryKeys: _no_keys(_PRIMARY_KEYS),
    pb.CommandGetExportedKeys: _no_keys(_FOREIGN_KEYS),
    pb.CommandGetImportedKeys: _no_keys(_FOREIGN_KEYS),
    pb.CommandGetCrossReference: _no_keys(_FOREIGN_KEYS),
}


def sql_info(numbers: Iterable[int]) -> pa.Table:
    """Return the values of `numbers`, or of all numbers if it is empty.

    Numbers that the enum lacks are left out.
    """
    wanted = [number for number in (list(numbers) or sorted(_INFO)) if number in _INFO]
    children: list[list[Any]] = [[] for _ in _KINDS]
    offsets: list[int] = []
    for number in wanted:
        kind, value = _INFO[number]
        offsets.append(len(children[kind]))
        children[kind].append(value)
    kinds = pa.array([_INFO[number][0] for number in wanted], pa.int8())
    arrays = [
        pa.array(values, kind) for values, kind in zip(children, _KINDS.values(), strict=True)
    ]
    union = cast("Any", pa).UnionArray.from_dense(
        kinds, pa.array(offsets, pa.int32()), arrays, list(_KINDS)
    )
    schema = pa.schema([pa.field("info_name", pa.uint32(), False), pa.field("value", union.type)])
    return pa.Table.from_arrays([pa.array(wanted, pa.uint32()), union], schema=schema)
