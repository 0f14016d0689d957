"""A connection's requests: who may make them, and which function answers each."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from wings_server.flight.boundary import ClientGone
from wings_server.kafka import fetch, group_requests, list_offsets, topic_requests
from wings_server.kafka.messages import Api, Head, Request, Values, api_versions, parse
from wings_server.kafka.produce import Producer
from wings_server.kafka.service import KafkaService
from wings_server.kafka.wire import Connection
from wings_server.waiting import WaitingCall

PARSED_BYTES_MAX = 16 * 1024
"""Largest request that is parsed on the event loop; longer ones are parsed by a reader."""

_GROUPS: Mapping[Api, Callable[..., Awaitable[Values]]] = {
    Api.OFFSET_COMMIT: group_requests.commit,
    Api.OFFSET_FETCH: group_requests.fetch,
    Api.JOIN_GROUP: group_requests.join,
    Api.HEARTBEAT: group_requests.heartbeat,
    Api.LEAVE_GROUP: group_requests.leave,
    Api.SYNC_GROUP: group_requests.sync,
}
_OTHERS: Mapping[Api, Callable[..., Awaitable[bytes]]] = {
    Api.LIST_OFFSETS: list_offsets.list_offsets,
    Api.METADATA: topic_requests.metadata,
    Api.FIND_COORDINATOR: topic_requests.find_coordinator,
    Api.CREATE_TOPICS: topic_requests.create_topics,
    Api.DELETE_TOPICS: topic_requests.delete_topics,
    Api.INIT_PRODUCER_ID: topic_requests.init_producer_id,
}


class Session:
    """Answers the requests of one connection; for the event loop.

    Args:
        service: The service.
        connection: The connection.

    Raises:
        Unauthenticated: Every call needs a token, which cannot be presented yet.
        Unavailable: Metadata cannot be reached, so that a token may be needed.
    """

    def __init__(self, service: KafkaService, connection: Connection) -> None:
        self._service = service
        self._principal = service.gate.principal(None, "kafka")
        self._loop = asyncio.get_running_loop()
        self._close = connection.close
        self._producer = Producer(service, self._principal, self._failed)
        self._wait: WaitingCall | None = None

    def produces(self, head: Head) -> bool:
        """Return whether a request is submitted by `submit`."""
        return head.api is Api.PRODUCE

    def submit(self, head: Head, frame: memoryview, answer: Callable[[bytes | None], None]) -> None:
        """Submit a request to produce; calls `answer` on the event loop."""
        self._principal.check()

        def answered(response: bytes | None) -> None:
            self._on_loop(answer, response)

        self._producer.submit(head, frame, answered)

    async def answer(self, head: Head, frame: memoryview) -> bytes:
        """Return the response to another request; see `wire.Requests`."""
        self._principal.check()
        if head.api is Api.API_VERSIONS:
            return api_versions(head)
        service = self._service
        if len(frame) <= PARSED_BYTES_MAX:
            request = parse(head, frame)
        else:
            request = await service.read(lambda: parse(head, frame))
        return await self._answer(request)

    async def _answer(self, request: Request) -> bytes:
        service, principal, api = self._service, self._principal, request.head.api
        if api is Api.FETCH:
            try:
                return await fetch.fetch(service, principal, request, self._waits)
            finally:
                self._wait = None
        if api in _GROUPS:
            return request.response(await _GROUPS[api](service, principal, request))
        return await _OTHERS[api](service, principal, request)

    def gone(self) -> None:
        """End a wait, as the client has gone."""
        if self._wait is not None:
            self._wait.set(ClientGone("the client has gone away"))

    def _waits(self, wait: WaitingCall) -> None:
        self._wait = wait

    def _failed(self, reason: str) -> None:
        """Close the connection; from any thread."""
        self._on_loop(self._close, reason)

    def _on_loop(self, call: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # The loop is closed, and the connection with it.
            self._loop.call_soon_threadsafe(call, *args)
