"""DoGet of SQL: from a statement to a stream of its rows."""

from collections.abc import Callable, Generator
from contextlib import closing

import pyarrow as pa
import pyarrow.flight as flight

from wings_core.contracts.sql import SqlBody
from wings_core.fetch.fetcher import Cancel
from wings_core.security.principal import Principal
from wings_core.sql import Query
from wings_server.flight.client_watch import ClientWatch
from wings_server.metrics import Metrics
from wings_server.served_log import ServedLog


def open_sql(
    log: ServedLog,
    asked: SqlBody,
    allow: Callable[[str], None],
    principal: Principal,
    cancel: Cancel,
) -> Query:
    """Return a query, planned and not begun; see `Sql.open`.

    Args:
        log: The log to read.
        asked: The statement.
        allow: Function that raises if the caller may not read a topic.
        principal: The caller.
        cancel: Cancellation of the query.
    """
    return log.sql.open(
        asked.sql,
        allow,
        asked.parameters,
        asked.default_namespace,
        cancel,
        asked.seconds_max,
        principal,
        asked.sent_tables,
    )


def stream_sql(
    query: Query,
    cancel: Cancel,
    context: flight.ServerCallContext,
    watch: ClientWatch,
    metrics: Metrics,
) -> Generator[tuple[pa.RecordBatch, bytes]]:
    """Yield the rows of a query, without metadata."""
    with watch.watched(context, cancel), closing(query), closing(query.batches()) as batches:
        for batch in batches:
            metrics.delivered("flight", batch.num_rows, batch.nbytes)
            yield batch, b""
