"""The endpoints under `/v1`: each parses, calls one plain function, and translates."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from wings_core.contracts.actions import (
    ActionBody,
    CreateTopic,
    ListNamespaces,
    ListTopics,
    NamespaceBody,
    TopicBody,
)
from wings_core.contracts.messages import JSON_BYTES_MAX
from wings_core.errors import InvalidArgument
from wings_core.model import Rejected
from wings_core.names import NamespaceName
from wings_core.times import Deadline
from wings_server.action import Json
from wings_server.actions import ACTIONS
from wings_server.flight.client_watch import ClientGone
from wings_server.http.answers import (
    AcknowledgeAnswer,
    AcquireAnswer,
    FetchAnswer,
    NamespaceDescription,
    PartitionDescription,
    PushAnswer,
    TopicDescription,
)
from wings_server.http.bodies import (
    FetchBody,
    FetchRequest,
    PushBody,
    ShareAcknowledgeBody,
    ShareAcquireBody,
    parse_fetch,
    topic_in,
)
from wings_server.http.documentation import described
from wings_server.http.envelope import parse_push
from wings_server.http.fetch import Answer, Poll
from wings_server.http.push import push, push_answer
from wings_server.http.service import HttpService
from wings_server.http.share import AcquirePoll
from wings_server.http.wire import Body, JsonAnswer

_BAD = HTTPStatus.BAD_REQUEST
_NOT_FOUND = HTTPStatus.NOT_FOUND
_CONFLICT = HTTPStatus.CONFLICT

NAMESPACE = "/v1/tenants/{tenant}/namespaces/{namespace}"
TOPIC = NAMESPACE + "/topics/{topic}"


def add_api(app: FastAPI, service: HttpService) -> None:
    """Add the endpoints, and `/metrics`, to an application."""
    api = _Api(service)

    def add(method: str, path: str, handler: Callable[..., Any], **about: Any) -> None:
        app.add_api_route(path, handler, methods=[method], **about)

    text = {"response_class": PlainTextResponse, "response_model": None}
    add("GET", "/metrics", api.metrics, tags=["health"], **text)

    messages = {"tags": ["messages"]}
    fetched = described(FetchAnswer, body=FetchBody, errors=[_NOT_FOUND])
    add("POST", "/v1/fetch", api.fetch, **messages, **fetched)
    add("POST", "/v1/push", api.push, **messages, **described(PushAnswer, body=PushBody))

    share = {"tags": ["share groups"]}
    acquired = described(AcquireAnswer, body=ShareAcquireBody, errors=[_NOT_FOUND])
    add("POST", "/v1/share/acquire", api.share_acquire, **share, **acquired)
    settled = described(AcknowledgeAnswer, body=ShareAcknowledgeBody, errors=[_NOT_FOUND])
    add("POST", "/v1/share/acknowledge", api.share_acknowledge, **share, **settled)

    names = {"tags": ["namespaces"]}
    listed = described(list[NamespaceDescription])
    add("GET", "/v1/namespaces", api.list_namespaces, **names, **listed)
    created = described(NamespaceDescription, body=NamespaceBody, errors=[_CONFLICT])
    add("POST", "/v1/namespaces", api.create_namespace, **names, **created)
    deleted = described(NamespaceDescription, errors=[_BAD, _NOT_FOUND, _CONFLICT])
    add("DELETE", NAMESPACE, api.delete_namespace, **names, **deleted)

    topics = {"tags": ["topics"]}
    listed = described(list[TopicDescription], errors=[_BAD, _NOT_FOUND])
    add("GET", NAMESPACE + "/topics", api.list_topics, **topics, **listed)
    created = described(TopicDescription, body=CreateTopic, errors=[_NOT_FOUND, _CONFLICT])
    add("POST", NAMESPACE + "/topics", api.create_topic, **topics, **created)
    one = described(TopicDescription, errors=[_BAD, _NOT_FOUND])
    add("GET", TOPIC, api.describe_topic, **topics, **one)
    add("DELETE", TOPIC, api.delete_topic, **topics, **one)
    states = described(list[PartitionDescription], errors=[_BAD, _NOT_FOUND])
    add("GET", TOPIC + "/partitions", api.partitions, **topics, **states)


class _Api:
    """The handlers; their docstrings are the document's descriptions."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def metrics(self) -> Response:
        """Return the metrics in Prometheus's text format."""
        metrics = self._service.metrics
        return Response(await self._service.read(metrics.exposition), media_type=metrics.media_type)

    async def fetch(self, request: Request) -> Response:
        """Read messages of many partitions, and wait for them where there are too few.

        The answer has one result for each partition, in the order of the request. A partition that
        cannot be read fails alone; where the messages exceed one answer, fewer are returned.
        """
        arrived = time.monotonic()
        service = self._service
        with service.call():
            with Body(service.bodies) as body:
                asked = parse_fetch(await body.receive(request, JSON_BYTES_MAX))
            deadline = Deadline(arrived + asked.body.timeout_ms / 1000)
            service.metrics.fetch_begun("http")
            poll, answer = await service.read(partial(_begin, service, asked, deadline))
            del asked
            if answer is None:
                answer = await self._wait(poll, request)
            service.metrics.delivered("http", answer.messages, len(answer.body))
            for code in answer.errors:
                service.metrics.failed("http", code)
            return JsonAnswer(answer.body, service.answers)

    async def _wait(self, poll: Poll, request: Request) -> Answer:
        """Wait for enough messages or the deadline; holds no thread meanwhile."""
        service = self._service
        with service.waiting.one(request.receive) as wake, ExitStack() as watch:
            # Entered on a reader's thread, as it looks at the log.
            await service.read(lambda: watch.enter_context(poll.watch(wake.notify)))
            while True:
                await wake.wait(poll.deadline)
                answer = await service.read(poll.advance)
                if answer is not None:
                    return answer

    async def push(self, request: Request) -> Response:
        """Commit batches, each on its own and in order; the answer has a result for each."""
        service = self._service
        with service.call():
            with Body(service.bodies) as body:
                raw = await body.receive(request, service.log.limits.http_body_bytes_max)
                batches = await service.read(partial(parse_push, raw))
                del raw
                body.raw = b""
                pushed = await service.write(partial(push, service.log, batches))
            for one in pushed:
                if isinstance(one.result, Rejected):
                    service.metrics.failed("http", one.result.error.code)
                else:
                    service.metrics.pushed("http", one.rows, one.bytes)
            answer = push_answer(batches, pushed)
            return JsonAnswer(answer, service.answers, is_of_change=True)

    async def share_acquire(self, request: Request) -> Response:
        """Acquire messages for a member of a share group, and wait where there are none.

        Each delivery is held under its lease until it is acknowledged or the lock expires. With too
        many messages for one answer, fewer are acquired.
        """
        arrived = time.monotonic()
        service = self._service
        with service.call():
            with Body(service.bodies) as body:
                raw = await body.receive(request, JSON_BYTES_MAX)
                asked = ShareAcquireBody.parse(raw, InvalidArgument, "acquire body")
            deadline = Deadline(arrived + asked.timeout_ms / 1000)
            service.answers.check_room()  # Before leasing: leased messages must be sent.
            service.metrics.fetch_begun("http")
            poll, answer = await service.write(partial(_begin_acquire, service, asked, deadline))
            if answer is None:
                answer = await self._wait_for_messages(poll, request)
            service.metrics.delivered("http", poll.messages, len(answer))
            return JsonAnswer(answer, service.answers, is_of_change=True)

    async def _wait_for_messages(self, poll: AcquirePoll, request: Request) -> bytes:
        """Wait for messages or the deadline; holds no thread meanwhile."""
        service = self._service
        with service.waiting.one(request.receive) as wake, ExitStack() as watch:
            await service.write(lambda: watch.enter_context(poll.watch(wake.notify)))
            # The first look is for commits between the one before and the watch.
            while (answer := await service.write(poll.advance)) is None:
                await wake.wait(poll.look_again)
                service.answers.check_room()
            try:
                await wake.wait(Deadline.after(0))  # Raises if the client has gone.
            except ClientGone:
                await service.write(poll.release)
                raise
            return answer

    async def share_acknowledge(self, request: Request) -> Response:
        """Accept, release, reject or renew messages that a member holds.

        The entries of one partition succeed or fail together.
        """
        return await self._change(
            "share-acknowledge",
            lambda raw: ShareAcknowledgeBody.parse_body(raw).action_body,
            request,
        )

    async def list_namespaces(self) -> Response:
        """List the namespaces, by name."""
        return await self._look("list-namespaces", ListNamespaces)

    async def create_namespace(self, request: Request) -> Response:
        """Create a namespace."""
        return await self._change("create-namespace", NamespaceBody.parse_body, request)

    async def delete_namespace(self, tenant: str, namespace: str) -> Response:
        """Delete an empty namespace, and tell what it was."""
        name = _namespace(tenant, namespace)
        return await self._change("delete-namespace", lambda _: NamespaceBody(namespace=name))

    async def list_topics(self, tenant: str, namespace: str) -> Response:
        """List the topics of a namespace, by name."""
        name = _namespace(tenant, namespace)
        return await self._look("list-topics", lambda: ListTopics(namespace=name))

    async def create_topic(self, tenant: str, namespace: str, request: Request) -> Response:
        """Create a topic in a namespace; a bare id in the body is of that namespace."""
        name = _namespace(tenant, namespace)

        def parse(raw: bytes) -> CreateTopic:
            body = CreateTopic.parse_body(raw)
            topic = topic_in(NamespaceName.parse(name), body.topic)
            return body.model_copy(update={"topic": str(topic)})

        return await self._change("create-topic", parse, request)

    async def describe_topic(self, tenant: str, namespace: str, topic: str) -> Response:
        """Describe a topic."""
        name = _topic(tenant, namespace, topic)
        return await self._look("describe-topic", lambda: TopicBody(topic=name))

    async def delete_topic(self, tenant: str, namespace: str, topic: str) -> Response:
        """Delete a topic and its messages, and tell what it was."""
        name = _topic(tenant, namespace, topic)
        return await self._change("delete-topic", lambda _: TopicBody(topic=name))

    async def partitions(self, tenant: str, namespace: str, topic: str) -> Response:
        """Tell where the partitions of a topic begin and end, by value."""
        name = _topic(tenant, namespace, topic)
        return await self._look("partition-states", lambda: TopicBody(topic=name))

    async def _look(self, action: str, body: Callable[[], ActionBody]) -> Response:
        """Run an action that changes nothing."""
        service = self._service
        with service.call():
            found = ACTIONS[action]
            answer = await service.read(lambda: found.run(service.log, body()))
            return self._answer(answer, is_of_change=False)

    async def _change(
        self, action: str, parse: Callable[[bytes], ActionBody], request: Request | None = None
    ) -> Response:
        """Run an action on a request's body, if it has one."""
        service = self._service
        with service.call(), Body(service.bodies) as body:
            raw = b"" if request is None else await body.receive(request, JSON_BYTES_MAX)
            found = ACTIONS[action]
            answer = await service.write(lambda: found.run(service.log, parse(raw)))
            return self._answer(answer, is_of_change=True)

    def _answer(self, answer: Json, *, is_of_change: bool) -> Response:
        encoded = json.dumps(answer, ensure_ascii=False).encode()
        return JsonAnswer(encoded, self._service.answers, is_of_change=is_of_change)


def _begin(
    service: HttpService, asked: FetchRequest, deadline: Deadline
) -> tuple[Poll, Answer | None]:
    poll = Poll(service.log, service.fetcher, asked, deadline)
    return poll, poll.advance()


def _begin_acquire(
    service: HttpService, asked: ShareAcquireBody, deadline: Deadline
) -> tuple[AcquirePoll, bytes | None]:
    poll = AcquirePoll(service.log, asked, deadline)
    return poll, poll.advance()


def _namespace(tenant: str, namespace: str) -> str:
    return f"tenants/{tenant}/namespaces/{namespace}"


def _topic(tenant: str, namespace: str, topic: str) -> str:
    return f"{_namespace(tenant, namespace)}/topics/{topic}"
