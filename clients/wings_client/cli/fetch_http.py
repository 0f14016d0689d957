"""A server's HTTP interface, for `wings fetch` from an endpoint of HTTP."""

import http.client
import json
from typing import Any

import pyarrow as pa

from wings_client import Connection, Topic
from wings_client._errors import unreachable
from wings_client.cli.access import current_access, refuse_files_of_tls, tls_context
from wings_client.cli.endpoint import Endpoint
from wings_core.arrow_types import fields_of
from wings_core.errors import Internal, InvalidArgument, Unavailable, error_from_json
from wings_core.json_rows import decode_rows
from wings_core.names import TopicName
from wings_core.partitions import JsonScalar

GRACE_SECONDS = 30.0
"""Timeout of a call apart from its long poll, in seconds."""

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Longest accepted response; a server sends at most 32 MiB by default."""


class HttpServer:
    """A server's HTTP interface, for an HTTP endpoint; each call has a connection of its own."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def topic(self, name: str) -> Topic:
        """Return a topic's description.

        Raises:
            TopicNotFound: There is no topic of this name.
        """
        return Topic.from_json(self._call("GET", f"/v1/{TopicName.parse(name)}"))

    def fetch(
        self, topic: Topic, partition: JsonScalar, offset: int, limits: dict[str, int]
    ) -> tuple[pa.RecordBatch, int, int | None]:
        """Return messages of one partition from an offset; long-polls for enough.

        Args:
            topic: The topic.
            partition: Partition value; None for a topic without a key.
            offset: The first offset.
            limits: `timeout_ms`, `min_messages`, `max_messages`, if given.

        Returns:
            The messages, and the offsets of the first and the last one.

        Raises:
            WingsError: The server's error, or `Unavailable`.
        """
        name = TopicName.parse(topic.name)
        asked = {"topic": name.topic, "partition_value": partition, "offset": offset}
        body = {"namespace": str(name.namespace), "topics": [asked], **limits}
        wait = limits.get("timeout_ms", 0) / 1000
        (found,) = self._call("POST", "/v1/fetch", body, wait)["topics"]
        if found["_tag"] == "error":
            raise error_from_json({key: found[key] for key in ("code", "message")})
        batch = _decoded(found["messages"], topic.schema)
        return batch, found["start_offset"], found["end_offset"]

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, wait: float = 0.0
    ) -> Any:
        endpoint = self._endpoint
        seconds = wait + GRACE_SECONDS
        connection: http.client.HTTPConnection
        if endpoint.scheme == "http":
            refuse_files_of_tls(endpoint.url)
            connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=seconds)
        else:
            connection = http.client.HTTPSConnection(
                endpoint.host, endpoint.port, timeout=seconds, context=tls_context()
            )
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        headers |= {name.decode(): value.decode() for name, value in current_access().headers}
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(endpoint.url, str(error)) from None
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read(ANSWER_BYTES_MAX + 1)
        except TimeoutError:
            raise self._unavailable("no answer in time", Connection.TIMEOUT) from None
        except OSError as error:
            raise self._unavailable(str(error), Connection.LOST) from None
        except http.client.IncompleteRead:
            raise self._unavailable("the response was truncated", Connection.LOST) from None
        except http.client.HTTPException:
            raise InvalidArgument(
                f"{endpoint.url} is not an HTTP server: for Arrow Flight, give grpc://HOST:PORT"
            ) from None
        finally:
            connection.close()
        return self._read(answer.status, data)

    def _read(self, status: int, data: bytes) -> Any:
        if len(data) > ANSWER_BYTES_MAX:
            raise Internal(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        try:
            found = json.loads(data)
        except ValueError:
            raise Internal(
                f"{self._endpoint.url} answers {status} without JSON: is it a Wings server?"
            ) from None
        if status == 200:
            return found
        if isinstance(found, dict) and "code" in found:
            raise error_from_json(found)
        raise Internal(f"{self._endpoint.url} answers {status}: is it a Wings server?")

    def _unavailable(self, problem: str, how: Connection) -> Unavailable:
        url = self._endpoint.url
        return Unavailable(f"{url}: {problem}", endpoint=url, connection=how.value)


def _decoded(messages: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return decoded messages in the topic's types."""
    # JSON has no NaN: it is sent as null, even if the column is not nullable.
    nullable = pa.schema([field.with_nullable(True) for field in fields_of(schema)])
    return decode_rows(json.dumps(messages, ensure_ascii=False).encode(), nullable)
