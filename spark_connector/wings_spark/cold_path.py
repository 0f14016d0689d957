"""The cold path: Spark's own Parquet reader reads the rows in a topic's table.

    ranges, fixed ─▶ files of the table within them ─▶ Spark's Parquet reader ─┐
                  └▶ the rest of the ranges ─▶ tasks over Flight ──────────────┴─▶ union

Ranges are fixed before the table's files are listed, and offsets never change: with any snapshot,
each row comes from exactly one of the two. Nothing here fails: Flight reads whatever Spark cannot.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from wings_client import Client, Topic
from wings_client.cold import ColdFile, cold_files
from wings_core.arrow_types import children, fields_of
from wings_spark.options import SparkReadOptions
from wings_spark.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OFFSET = "__offset"

_OPTIONS = {
    "datetimeRebaseMode": "CORRECTED",
    # A file deleted before the query is an error, never fewer rows.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
}


@dataclass(frozen=True, slots=True)
class Split:
    """The ranges of a read, split into files and the rest."""

    whole: list[str]
    """URLs of files with all rows in the ranges."""
    cut: list[str]
    """URLs of files with some rows in the ranges, for a topic without a key."""
    bounds: tuple[int, int]
    """Start and end offset of the only range of a topic without a key."""
    rest: list[Range]
    """Ranges in no file."""


def split(ranges: Sequence[Range], files: Sequence[ColdFile], *, keyed: bool) -> Split:
    """Split the ranges of one topic, which has at most one per partition.

    Args:
        ranges: Ranges to read, with each offset once.
        files: Files of the topic's table; no two hold the same row.
        keyed: Whether the topic has a partition key: files only partly in its ranges are then left
            out.
    """
    found = Split([], [], (0, 0), [])
    by_partition: dict[str, list[ColdFile]] = {}
    for file in files:
        by_partition.setdefault(file.partition, []).append(file)
    for wanted in ranges:
        at = wanted.start_offset
        for file in sorted(by_partition.get(wanted.partition, ()), key=lambda f: f.start_offset):
            start, end = max(file.start_offset, at), min(file.end_offset, wanted.end_offset)
            is_whole = (start, end) == (file.start_offset, file.end_offset)
            if start >= end or (keyed and not is_whole):
                continue
            (found.whole if is_whole else found.cut).append(file.path)
            if at < start:
                found.rest.append(replace(wanted, start_offset=at, end_offset=start))
            at = end
        if at < wanted.end_offset:
            found.rest.append(replace(wanted, start_offset=at))
    bounds = (ranges[0].start_offset, ranges[0].end_offset) if ranges else (0, 0)
    return replace(found, bounds=bounds)


def cold_part(
    spark: "SparkSession",
    client: Client,
    topic: Topic,
    ranges: Sequence[Range],
    schema: StructType,
    options: SparkReadOptions,
) -> "tuple[DataFrame | None, Sequence[Range]]":
    """Return the rows that Spark reads from files, and the remaining ranges.

    Args:
        spark: The session.
        client: Client of the server.
        topic: The topic, with the schema to read.
        ranges: Ranges of the read.
        schema: Schema of the wanted columns.
        options: Options of the read.

    Returns:
        The rows and the remaining ranges. None, and all ranges, if the topic is not a table, the
        read has a filter, Spark's reader has no type for a column, or the files cannot be reached.
    """
    is_table = topic.config.get("table") is not None
    if not is_table or options.filter is not None or not _is_readable(topic, schema.names):
        return None, ranges
    try:
        files = cold_files(client.table(topic), topic.uuid)
        known = [file for file in files if file.schema_version <= topic.schema_version]
        found = split(ranges, known, keyed=topic.partition_key is not None)
        paths = [*found.whole, *found.cut]
        if not paths or not _is_shared(spark, paths[0]):
            return None, ranges
        frame = _frame(spark, found, schema)
        # Spark looks for the files here.
        assert frame.columns == schema.names
    except Exception:  # noqa: BLE001 - of any catalog and file system; the server has the rows.
        return None, ranges
    return frame, found.rest


def _frame(spark: "SparkSession", found: Split, schema: StructType) -> "DataFrame":
    names = [f"`{name.replace('`', '``')}`" for name in schema.names]
    frames: list[DataFrame] = []
    if found.whole:
        frames.append(_files(spark, found.whole, schema).select(*names))
    if found.cut:
        offset = StructType([StructField(_OFFSET, LongType())])
        with_offset = (
            schema if _OFFSET in schema.names else StructType(schema.fields + offset.fields)
        )
        start, end = found.bounds
        inside = f"{_OFFSET} >= {start} AND {_OFFSET} < {end}"
        frames.append(_files(spark, found.cut, with_offset).where(inside).select(*names))
    return frames[0] if len(frames) == 1 else frames[0].union(frames[1])


def _files(spark: "SparkSession", paths: Sequence[str], schema: StructType) -> "DataFrame":
    # Hadoop's file system of S3 has a scheme of its own.
    urls = [f"s3a{path[2:]}" if path.startswith("s3://") else path for path in paths]
    return spark.read.schema(schema).options(**_OPTIONS).parquet(*urls)


def _is_shared(spark: "SparkSession", path: str) -> bool:
    """Return whether Spark's executors can read a file: a local one only on this machine."""
    if "://" in path and not path.startswith("file:"):
        return True
    try:
        master = spark.conf.get("spark.master")
    except Exception:  # noqa: BLE001 - where the session does not tell.
        return False
    return str(master).startswith("local")


def _is_readable(topic: Topic, names: Sequence[str]) -> bool:
    """Return whether Spark's reader returns the same values from files as from Flight."""
    fields = fields_of(topic.schema)
    folded = {field.name.lower() for field in fields}
    of_names = [field for field in fields if field.name in names]
    return len(folded) == len(fields) and all(_is_native(field.type) for field in of_names)


def _is_native(data_type: pa.DataType) -> bool:
    inner = children(data_type)
    if inner:
        is_list = pa.types.is_list(data_type) or pa.types.is_large_list(data_type)
        known = is_list or pa.types.is_struct(data_type) or pa.types.is_map(data_type)
        return known and all(_is_native(child.type) for child in inner)
    if pa.types.is_timestamp(data_type):
        return cast("Any", data_type).unit != "ns"
    if data_type == pa.uint64() or pa.types.is_float16(data_type):
        return False
    return any(
        check(data_type)
        for check in (
            pa.types.is_boolean,
            pa.types.is_integer,
            pa.types.is_floating,
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_date32,
            pa.types.is_decimal128,
        )
    )
