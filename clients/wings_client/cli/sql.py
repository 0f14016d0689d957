"""`wings sql`: runs one SQL statement over topics, and shows its rows."""

import sys
from enum import StrEnum
from typing import Annotated, Any

import pyarrow as pa
import typer

from wings_client.cli.endpoint import DEFAULT, EndpointOption, connected
from wings_client.cli.output import Format, check_output, write_all


class SqlFormat(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(metavar="[STATEMENT]", help="One statement; default: standard input."),
    ] = None,
    *,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            metavar="VALUE",
            help="The value of the next `?`, as text, which SQL casts where it is compared.",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="tenants/T/namespaces/N", help="Of tables without a schema."),
    ] = None,
    timeout: Annotated[
        int | None,
        typer.Option(metavar="MS", min=1, help="Milliseconds that the statement may take."),
    ] = None,
    wanted_format: Annotated[
        SqlFormat,
        typer.Option("--format", help="table for people; the others write data alone."),
    ] = SqlFormat.TABLE,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Run one SQL statement over topics, which are its tables.

        $ wings sql "select origin, count(*) from flights group by 1 order by 2 desc limit 5"

    After a topic's own columns a table has `__partition`, `__offset` and `__timestamp`. A namespace
    is a schema; tables without one are of the default namespace.

        $ wings sql --format parquet "from flights where delay > 60" > late.parquet
    """
    _check(wanted_format)
    text = sys.stdin.read() if statement is None else statement
    seconds = None if timeout is None else timeout / 1000
    with connected(endpoint) as client:
        reader = client.sql(text, parameters or (), namespace=namespace, timeout=seconds)
        write_rows(reader, wanted_format)


def write_rows(reader: pa.RecordBatchReader, wanted: SqlFormat) -> None:
    """Write the rows of a statement to standard output."""
    if wanted is not SqlFormat.PARQUET:
        write_all(reader, reader.schema, Format(wanted.value))
        return
    import pyarrow.parquet as parquet

    sink: Any = sys.stdout.buffer
    with parquet.ParquetWriter(pa.PythonFile(sink, "w"), reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    sink.flush()


def _check(wanted: SqlFormat) -> None:
    if wanted is SqlFormat.PARQUET and sys.stdout.isatty():
        raise typer.BadParameter(
            "parquet is binary: send it to a file or a pipe", param_hint="--format"
        )
    if wanted is not SqlFormat.PARQUET:
        check_output(Format(wanted.value))
