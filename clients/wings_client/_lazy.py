"""Topics as lazy frames of Polars, which read what a query needs when it is collected.

Polars' interface of sources hands over the columns, the predicate and the number of rows that a
query needs. The predicate is applied here, by Polars, always; those of its parts that mean the same
in SQL are the scan's filter too, so that most rows that it drops are not sent. Of a part that has
no translation (floats, where NaN compares otherwise; all that is not listed here) nothing is sent.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from wings_client._results import ReadResult, tool
from wings_client.arrow import Schema
from wings_core.contracts.messages import INT64_MAX
from wings_core.times import moment_of

Open = Callable[[Sequence[str], str | None], ReadResult]
"""Opens a scan of columns and a filter."""

_COMPARISONS = {"Eq": "=", "NotEq": "<>", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}

_BETWEEN = {
    "Both": (">=", "<="),
    "Left": (">=", "<"),
    "Right": (">", "<="),
    "None": (">", "<"),
}


def lazy_frame(name: str, schema: Schema, columns: Schema, open_scan: Open) -> Any:
    """Return a lazy frame of a topic.

    Args:
        name: Name of the topic, for plans.
        schema: Schema of the rows.
        columns: The topic's own columns, which a filter may use.
        open_scan: Opens the scan of a query.
    """
    polars = tool("polars", "lazy")
    from polars.io.plugins import register_io_source

    def rows(
        with_columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
    ) -> Iterator[Any]:
        del batch_size  # A hint: batches come as the server sends them.
        wanted = schema.names if with_columns is None else with_columns
        used = set(wanted) if predicate is None else {*wanted, *predicate.meta.root_names()}
        read = [name for name in schema.names if name in used] or schema.names[:1]
        # Rows are counted before the predicate drops any, so the server must send all.
        where = None if predicate is None or n_rows is not None else filter_of(predicate, columns)
        left = n_rows
        with open_scan(read, where) as scan:
            for batch in scan if left != 0 else ():
                found = batch if left is None else batch.slice(0, left)
                frame = polars.from_arrow(found)
                if predicate is not None:
                    frame = frame.filter(predicate)
                yield frame.select(wanted)
                if left is not None and (left := left - found.num_rows) <= 0:
                    return

    kinds = polars.DataFrame(schema.empty_table()).schema
    return register_io_source(rows, schema=kinds, explain_name=f"wings {name}")


def filter_of(predicate: Any, schema: Schema) -> str | None:
    """Return SQL that passes all rows that a predicate of Polars passes; None: all rows."""
    try:
        node = json.loads(predicate.meta.serialize(format="json"))
        parts = [_Translation(schema).sql(part) for part in _conjuncts(node)]
    except Exception:  # noqa: BLE001 - of a format that Polars does not promise.
        return None
    return " AND ".join(f"({part})" for part in parts if part is not None) or None


def comparison(name: str, sign: str, value: int | str | bool, columns: Schema) -> str | None:
    """Return a comparison of a column as SQL; None where SQL may compare otherwise."""
    kind: Any = columns.field(name).type if name in columns.names else None
    text = None if kind is None else _plain(value, kind)
    return None if text is None else f"{_name(name)} {sign} {text}"


def _conjuncts(node: Any) -> Iterator[Any]:
    match node:
        case {"BinaryExpr": {"op": "And", "left": left, "right": right}}:
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case _:
            yield node


class _Translation:
    """Translates parts of a predicate, as Polars serializes them, that mean the same in SQL."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def sql(self, node: Any) -> str | None:
        """Return a part as SQL; None where there is none that means the same."""
        match node:
            case {"Column": name} if self._type(name) == pa.bool_():
                return _name(name)
            case {"BinaryExpr": {"op": "And" | "Or" as op, "left": left, "right": right}}:
                return self._all(f" {op.upper()} ", left, right)
            case {"BinaryExpr": {"op": op, "left": {"Column": name}, "right": {"Literal": value}}}:
                return self._compared(name, _COMPARISONS.get(op), value)
            case {"Function": {"input": inputs, "function": {"Boolean": function}}}:
                return self._function(inputs, function)
            case {
                "Function": {
                    "input": [{"Column": name}, {"Literal": {"Scalar": {"String": text}}}],
                    "function": {"StringExpr": "StartsWith"},
                }
            } if self._is_text(name):
                return f"starts_with({_name(name)}, {_text(text)})"
            case _:
                return None

    def _function(self, inputs: Sequence[Any], function: Any) -> str | None:
        match function, inputs:
            case "Not", [inner]:
                found = self.sql(inner)
                return None if found is None else f"NOT ({found})"
            case "IsNull" | "IsNotNull", [{"Column": name}] if self._type(name) is not None:
                return f"{_name(name)} IS {'' if function == 'IsNull' else 'NOT '}NULL"
            case {"IsBetween": {"closed": closed}}, [
                {"Column": name},
                {"Literal": first},
                {"Literal": last},
            ]:
                above, below = _BETWEEN[closed]
                found = self._compared(name, above, first), self._compared(name, below, last)
                return None if None in found else " AND ".join(cast("Any", found))
            case {"IsIn": {"nulls_equal": False}}, [
                {"Column": name},
                {"Literal": {"Scalar": {"List": stream}}},
            ]:
                return self._among(name, stream)
            case _:
                return None

    def _all(self, word: str, *nodes: Any) -> str | None:
        found = [self.sql(node) for node in nodes]
        return None if None in found else word.join(f"({part})" for part in found)

    def _compared(self, name: str, sign: str | None, value: Any) -> str | None:
        kind = self._type(name)
        literal = None if kind is None or sign is None else _literal(value, kind)
        return None if literal is None else f"{_name(name)} {sign} {literal}"

    def _among(self, name: str, stream: Sequence[int]) -> str | None:
        kind = self._type(name)
        if kind is None:
            return None
        values: list[Any] = pa.ipc.open_stream(bytes(stream)).read_all().column(0).to_pylist()
        if values and isinstance(values[0], list):
            values = values[0]
        texts = [_plain(value, kind) for value in values]
        if not texts or None in texts:
            return None
        return f"{_name(name)} IN ({', '.join(cast('Any', texts))})"

    def _type(self, name: str) -> Any:
        return self._schema.field(name).type if name in self._schema.names else None

    def _is_text(self, name: str) -> bool:
        return self._type(name) in (pa.string(), pa.large_string())


def _literal(value: Any, kind: Any) -> str | None:
    match value:
        case {"Dyn": {"Int": int(found)}}:
            return _plain(found, kind)
        case {"Scalar": {"Datetime": [int(found), "Microseconds", zone]}}:
            return _moment(found, zone, kind)
        case {"Scalar": scalar} if isinstance(scalar, Mapping) and len(scalar) == 1:
            return _plain(next(iter(cast("Mapping[str, Any]", scalar).values())), kind)
        case _:
            return None


def _plain(value: Any, kind: Any) -> str | None:
    """Return a value as SQL, where Polars and SQL compare it with a column of the type alike."""
    if isinstance(value, bool):
        return str(value).upper() if kind == pa.bool_() else None
    if isinstance(value, int):
        return str(value) if pa.types.is_integer(kind) and abs(value) <= INT64_MAX else None
    if isinstance(value, str) and kind in (pa.string(), pa.large_string()) and "\0" not in value:
        return _text(value)
    return None


def _moment(microseconds: int, zone: Any, kind: Any) -> str | None:
    if not pa.types.is_timestamp(kind) or kind.unit != "us" or (kind.tz is None) != (zone is None):
        return None
    try:
        moment = moment_of(microseconds)
    except OverflowError:
        return None
    text = moment.replace(tzinfo=None).isoformat(" ")
    return f"TIMESTAMP '{text}'" if zone is None else f"TIMESTAMPTZ '{text}+00:00'"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
