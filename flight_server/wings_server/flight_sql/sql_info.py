"""Facts about the server for drivers: a value for each number of Flight SQL's enum `SqlInfo`."""

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any, cast

import pyarrow as pa

from wings_core.sql.statement import STATEMENT_BYTES_MAX

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
