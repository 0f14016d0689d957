"""SQL over HTTP: a statement's rows as JSON, CSV or an Arrow stream, in one bounded response."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from wings_core.contracts.messages import JSON_BYTES_MAX
from wings_core.contracts.sql import SqlBody
from wings_core.errors import InvalidArgument, ResourceExhausted, WingsError
from wings_core.fetch.fetcher import Cancel
from wings_core.json_rows import encode_rows_within
from wings_core.json_rows.encode import csv_head, csv_rows
from wings_core.schemas import FieldSpec
from wings_core.times import Deadline
from wings_core.type_names import type_name
from wings_server.flight.do_get import open_sql
from wings_server.http.service import HttpService, principal_of
from wings_server.http.wire import Body, JsonAnswer

if TYPE_CHECKING:
    from wings_core.sql import Query

ARROW = "application/vnd.apache.arrow.stream"
CSV = "text/csv"

Encoder = Callable[["Query", int], bytes]
"""Encodes a query's rows within a number of bytes."""


class SqlAnswerSchema(BaseModel):
    """Columns of a result."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    fields: list[FieldSpec]


class SqlAnswer(BaseModel):
    """Rows of a statement; only for the OpenAPI document."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    columns: SqlAnswerSchema = Field(alias="schema")
    rows: list[dict[str, Any]] = Field(description="Objects of the columns.")


class SqlEndpoint:
    """The handler of statements.

    Args:
        service: The service whose log they read.
    """

    def __init__(self, service: HttpService) -> None:
        self._service = service
        self._calls = 0

    async def sql(self, request: Request) -> Response:
        """Run one SQL statement over topics, which are its tables.

        Namespaces are schemas; the columns `__partition`, `__offset` and `__timestamp` follow those
        of a topic. The response is JSON, or by `Accept` CSV (`text/csv`) or an Arrow stream
        (`application/vnd.apache.arrow.stream`). A result larger than a response is rejected: read
        it over Arrow Flight.
        """
        service = self._service
        with service.call():
            with Body(service.bodies) as body:
                raw = await body.receive(request, JSON_BYTES_MAX)
                asked = SqlBody.parse(raw, InvalidArgument, "sql body")
            media_type, encode = _wanted(request.headers.get("accept", ""))
            if self._calls >= 2 * service.log.limits.sql_queries_max:
                raise ResourceExhausted("too many SQL queries are waiting; try again later")
            self._calls += 1
            try:
                content = await self._run(request, asked, encode)
            finally:
                self._calls -= 1
            answer = JsonAnswer(content, service.answers)
            answer.headers["content-type"] = media_type
            return answer

    async def _run(self, request: Request, asked: SqlBody, encode: Encoder) -> bytes:
        """Run a statement on a thread; cancelled if the client disconnects."""
        service, principal, cancel = self._service, principal_of(request), Cancel()
        allow = partial(service.gate.allow, principal, "sql")
        opened = partial(open_sql, service.log, asked, allow, principal, cancel)
        work = partial(_encoded, opened, encode, service.log.limits.http_bytes_max)
        with service.waiting.one(request.receive, principal) as wake:
            running = service.state(work)
            running.add_done_callback(lambda _: wake.set())
            try:
                while not running.done():
                    await wake.wait(Deadline.never())
            except (WingsError, asyncio.CancelledError) as error:
                ended = error if isinstance(error, WingsError) else InvalidArgument("cancelled")
                cancel.cancel(ended)
                await asyncio.wait([running])
                running.exception()
                raise
        found = await running
        service.metrics.delivered("http", 0, len(found))
        return found


def _encoded(opened: "Callable[[], Query]", encode: Encoder, bytes_max: int) -> bytes:
    with closing(opened()) as query:
        return encode(query, bytes_max)


def _wanted(accept: str) -> tuple[str, Encoder]:
    """Return the media type that the client prefers, and its encoder."""
    best, liking = "application/json", 0.0
    for each in accept.split(","):
        media_type, *options = (part.strip().lower() for part in each.split(";"))
        quality = next((option[2:] for option in options if option.startswith("q=")), "1")
        weight = float(quality) if _QUALITY.fullmatch(quality) else 1.0
        if media_type in _ENCODERS and weight > liking:
            best, liking = media_type, weight
    return best, _ENCODERS[best]


_QUALITY = re.compile(r"[01](?:\.[0-9]{0,3})?")


def _json(query: "Query", bytes_max: int) -> bytes:
    fields = [
        {"name": field.name, "type": type_name(field.type), "nullable": True}
        for field in _fields(query.schema)
    ]
    head = json.dumps({"fields": fields}, ensure_ascii=False)
    pieces = [b'{"schema": ', head.encode(), b', "rows": [']
    between = b""
    for batch in _within(query, bytes_max):
        pieces += [between, encode_rows_within(batch, None).text]
        between = b","
        _check_size(pieces, bytes_max)
    return b"".join([*pieces, b"]}"])


def _csv(query: "Query", bytes_max: int) -> bytes:
    pieces = [csv_head(query.schema)]
    for batch in _within(query, bytes_max):
        pieces.append(csv_rows(batch))
        _check_size(pieces, bytes_max)
    return b"".join(pieces)


def _arrow(query: "Query", bytes_max: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, query.schema) as writer:
        for batch in _within(query, bytes_max):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


_ENCODERS: dict[str, Encoder] = {"application/json": _json, CSV: _csv, ARROW: _arrow}


def _within(query: "Query", bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield non-empty batches; raises if the result is larger than a response."""
    size = 0
    for batch in query.batches():
        size += batch.nbytes
        if size > bytes_max:
            raise _too_large(bytes_max)
        if batch.num_rows:
            yield batch


def _check_size(pieces: list[bytes], bytes_max: int) -> None:
    if sum(map(len, pieces)) > bytes_max:
        raise _too_large(bytes_max)


def _too_large(bytes_max: int) -> ResourceExhausted:
    return ResourceExhausted(
        f"a response over HTTP has at most {bytes_max} bytes: add a LIMIT, or use Arrow Flight"
    )


def _fields(schema: pa.Schema) -> "list[pa.Field[Any]]":
    return [schema.field(index) for index in range(len(schema))]
