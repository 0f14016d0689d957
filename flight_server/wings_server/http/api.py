"""The endpoints under `/v1`: each parses, calls one plain function, and translates.

Endpoints that run one action are in the table `_ROUTES`.

`POST /v1/actions/NAME` is every action of Flight's DoAction, with the same body and response.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import WithJsonSchema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from wings_core.contracts.actions import (
    ActionBody,
    CreateTopic,
    ListNamespaces,
    ListTopics,
    NamespaceBody,
    PartitionStates,
    TopicBody,
)
from wings_core.contracts.messages import JSON_BYTES_MAX, Message
from wings_core.contracts.sql import SqlBody
from wings_core.contracts.totals import HealthBody
from wings_core.errors import InvalidArgument, suggested
from wings_core.model import Rejected
from wings_core.names import NamespaceName, TopicName
from wings_core.security.principal import Principal
from wings_core.times import Deadline
from wings_server.actions import ACTIONS
from wings_server.flight.boundary import ClientGone
from wings_server.http.application import (
    AcknowledgeAnswer,
    AcquireAnswer,
    Application,
    FetchAnswer,
    HealthDescription,
    NamespaceDescription,
    PartitionDescription,
    PushAnswer,
    TopicDescription,
    described,
)
from wings_server.http.bodies import (
    AlterTopicBody,
    FetchBody,
    PushBody,
    ShareAcknowledgeBody,
    ShareAcquireBody,
    parse_fetch,
    parse_push,
    topic_in,
)
from wings_server.http.fetch import HttpFetch
from wings_server.http.push import Pushed, push, push_answer
from wings_server.http.service import HttpService, principal_of, push_quotas_of, secret_presented
from wings_server.http.share import AcquirePoll
from wings_server.http.sql import ARROW, CSV, SqlAnswer, SqlEndpoint
from wings_server.http.wire import Body, JsonAnswer
from wings_server.served_log import encoded
from wings_server.shared_reads import answer_of, begun

_BAD = HTTPStatus.BAD_REQUEST

_NOT_FOUND = HTTPStatus.NOT_FOUND

_CONFLICT = HTTPStatus.CONFLICT

NAMESPACE = "/v1/tenants/{tenant}/namespaces/{namespace}"

TOPIC = NAMESPACE + "/topics/{topic}"

PATH = "/v1/actions/{name}"

_READING = frozenset(
    {
        "consumer-lag", "describe-topic", "get-offsets", "group-describe", "group-list", "history",
        "list-consumers", "list-namespaces",
        "list-nodes", "list-topics", "node-states", "offset-for-timestamp", "partition-states",
        "shard-count",
        "shard-get", "shard-list", "shard-sources", "share-describe", "share-list", "share-members",
        "sql-live", "tier-states", "token-list", "topic-totals", "traffic",
    }
)  # fmt: skip
"""Actions that change nothing and wait for no commit; all others count as changes."""

_STATUSES = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
)

_Name = Annotated[str, WithJsonSchema({"type": "string", "enum": sorted(ACTIONS)})]


def add_api(app: Application, service: HttpService) -> None:
    """Add the endpoints, and `/metrics`, to an application."""
    api = _Api(service)

    text: dict[str, Any] = {"response_class": PlainTextResponse, "response_model": None}
    app.add("/metrics", api.metrics, tags=["health"], **text)

    messages = {"tags": ["messages"]}
    fetched = described(FetchAnswer, body=FetchBody, errors=[_NOT_FOUND])
    app.add("/v1/fetch", api.fetch, "POST", **messages, **fetched)
    app.add("/v1/push", api.push, "POST", **messages, **described(PushAnswer, body=PushBody))
    statements = SqlEndpoint(service)
    answered = described(SqlAnswer, body=SqlBody, errors=[_NOT_FOUND])
    answered["responses"][200]["content"] = {CSV: {}, ARROW: {}}  # Beside JSON.
    app.add("/v1/sql", statements.sql, "POST", **messages, **answered)

    share = {"tags": ["share groups"]}
    acquired = described(AcquireAnswer, body=ShareAcquireBody, errors=[_NOT_FOUND])
    app.add("/v1/share/acquire", api.share_acquire, "POST", **share, **acquired)

    for route in _ROUTES:
        about = described(route.answer, body=route.body, errors=route.errors)
        description = ACTIONS[route.action].description + route.note
        about |= {"tags": [route.tag], "description": description}
        name = route.name or route.action.replace("-", "_")
        app.add(route.path, _handler(service, route), route.method, name=name, **about)
    _add_actions(app, service)


class _Api:
    """The handlers of messages; their docstrings are the descriptions in the OpenAPI document."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in Prometheus's text format."""
        self._service.gate.allow_metrics(principal_of(request))
        metrics = self._service.metrics
        return Response(
            await self._service.read(metrics.exposition_of_all), media_type=metrics.media_type
        )

    async def fetch(self, request: Request) -> Response:
        """Read messages of many partitions, waiting if there are too few.

        The response has one result for each partition, in the order of the request. A partition
        that cannot be read does not affect the others; messages beyond the size of a response are
        left out.
        """
        arrived = time.monotonic()
        service = self._service
        with service.call():
            with Body(service.bodies) as body:
                asked = parse_fetch(await body.receive(request, JSON_BYTES_MAX))
            for topic in dict.fromkeys(asked.topics):
                service.gate.allow(principal_of(request), "read", str(topic))
            deadline = Deadline(arrived + asked.body.timeout_ms / 1000)
            service.metrics.fetch_begun("http")
            opened = partial(HttpFetch, service.log, service.fetcher, asked, deadline)
            wake = service.waiting.call()
            with ExitStack() as watch:
                poll, answer = await service.read(partial(begun, opened, wake, watch))
                del asked, opened
                if answer is None:
                    with service.waiting.one(request.receive, principal_of(request), wake):
                        answer = await answer_of(poll, wake, service.read)
            service.metrics.delivered("http", answer.messages, len(answer.body))
            for topic, rows, size in answer.topics:
                service.metrics.traffic.delivered(topic, rows, size)
            for code in answer.errors:
                service.metrics.failed("http", code)
            return JsonAnswer(answer.body, service.answers)

    async def push(self, request: Request) -> Response:
        """Commit batches independently and in order; the response has a result for each."""
        service = self._service
        with service.call():
            with Body(service.bodies) as body:
                raw = await body.receive(request, service.log.limits.http_body_bytes_max)
                batches = await service.read(partial(parse_push, raw))
                del raw
                body.raw = b""
                admit = partial(self._admit_push, principal_of(request))
                quotas = push_quotas_of(request, service.gate)
                pushed = await service.write(partial(push, service.log, batches, admit, quotas))
            for index, (batch, one) in enumerate(zip(batches, pushed, strict=True)):
                if isinstance(one.result, Rejected):
                    service.metrics.failed("http", one.result.error.code)
                    told = await service.explained(request, one.result.error)
                    pushed[index] = Pushed(Rejected(told), 0, 0)
                else:
                    service.metrics.pushed("http", batch.topic, one.rows, one.bytes)
            answer = push_answer(batches, pushed)
            return JsonAnswer(answer, service.answers, is_of_change=True)

    def _admit_push(self, principal: Principal, topic: TopicName) -> None:
        self._service.gate.allow(principal, "push", str(topic))

    async def share_acquire(self, request: Request) -> Response:
        """Acquire messages for a member of a share group, waiting if there are none.

        Each delivery is held under its lease until it is acknowledged or the lock expires. Messages
        beyond the size of a response are not acquired.
        """
        arrived = time.monotonic()
        service = self._service
        with service.call():
            with Body(service.bodies) as body:
                raw = await body.receive(request, JSON_BYTES_MAX)
                asked = ShareAcquireBody.parse(raw, InvalidArgument, "acquire body")
            service.gate.allow(principal_of(request), "acquire", str(asked.topic_name))
            deadline = Deadline(arrived + asked.timeout_ms / 1000)
            service.answers.check_room()  # Before leasing: leased messages must be sent.
            service.metrics.fetch_begun("http")
            poll, answer = await service.write(partial(_begin_acquire, service, asked, deadline))
            if answer is None:
                answer = await self._wait_for_messages(poll, request)
            topic = asked.topic_name
            service.metrics.delivered("http", poll.messages, len(answer), topic)
            return JsonAnswer(answer, service.answers, is_of_change=True)

    async def _wait_for_messages(self, poll: AcquirePoll, request: Request) -> bytes:
        """Wait for messages or the deadline; holds no thread meanwhile."""
        service = self._service
        waiting = service.waiting.one(request.receive, principal_of(request))
        with waiting as wake, ExitStack() as watch:
            await service.write(lambda: watch.enter_context(poll.watch(wake.notify)))
            # Advance once more, for commits between the last attempt and the watch.
            while (answer := await service.write(poll.advance)) is None:
                await wake.wait(poll.deadline)
                service.answers.check_room()
            try:
                await wake.wait(Deadline.after(0))  # Raises if the client has gone.
            except ClientGone:
                await service.write(poll.release)
                raise
            return answer


def _begin_acquire(
    service: HttpService, asked: ShareAcquireBody, deadline: Deadline
) -> tuple[AcquirePoll, bytes | None]:
    poll = AcquirePoll(service.log, asked, deadline)
    return poll, poll.advance()


@dataclass(frozen=True, slots=True)
class _Route:
    """An endpoint that runs one action; a GET changes nothing."""

    method: str
    path: str
    action: str
    answer: Any
    parse: Callable[[str, bytes], ActionBody]
    """Builds the action's body from the path's name and the request's body; either may be empty."""
    tag: str = "topics"
    body: type[Message] | None = None
    errors: tuple[HTTPStatus, ...] = (_BAD, _NOT_FOUND)
    note: str = ""
    """Addition to the action's description."""
    name: str = ""
    """Name in the OpenAPI document; empty for the action's."""


def _topic_body(name: str, raw: bytes) -> TopicBody:
    del raw
    return TopicBody(topic=name)


def _create_topic(namespace: str, raw: bytes) -> CreateTopic:
    """Parse the body; a bare id belongs to the namespace in the path."""
    body = CreateTopic.parse_body(raw)
    topic = topic_in(NamespaceName.parse(namespace), body.topic)
    return body.model_copy(update={"topic": str(topic)})


_ROUTES = (
    _Route("POST", "/v1/share/acknowledge", "share-acknowledge", AcknowledgeAnswer,
           lambda _, raw: ShareAcknowledgeBody.parse_body(raw).action_body,
           "share groups", ShareAcknowledgeBody, (_NOT_FOUND,)),
    _Route("GET", "/v1/health", "health", HealthDescription, lambda _, __: HealthBody(), "health",
           errors=()),
    _Route("GET", "/v1/namespaces", "list-namespaces", list[NamespaceDescription],
           lambda _, __: ListNamespaces(), "namespaces", errors=()),
    _Route("POST", "/v1/namespaces", "create-namespace", NamespaceDescription,
           lambda _, raw: NamespaceBody.parse_body(raw), "namespaces", NamespaceBody, (_CONFLICT,)),
    _Route("DELETE", NAMESPACE, "delete-namespace", NamespaceDescription,
           lambda name, _: NamespaceBody(namespace=name), "namespaces",
           errors=(_BAD, _NOT_FOUND, _CONFLICT)),
    _Route("GET", NAMESPACE + "/topics", "list-topics", list[TopicDescription],
           lambda name, _: ListTopics(namespace=name)),
    _Route("POST", NAMESPACE + "/topics", "create-topic", TopicDescription, _create_topic,
           body=CreateTopic, errors=(_NOT_FOUND, _CONFLICT),
           note=" A bare id in the body belongs to the namespace in the path."),
    _Route("GET", TOPIC, "describe-topic", TopicDescription, _topic_body),
    _Route("PATCH", TOPIC, "alter-topic", TopicDescription,
           lambda name, raw: AlterTopicBody.parse_body(raw).action_body(name),
           body=AlterTopicBody, note=" A name in the body must be that of the path."),
    _Route("DELETE", TOPIC, "delete-topic", TopicDescription, _topic_body),
    _Route("GET", TOPIC + "/partitions", "partition-states", list[PartitionDescription],
           lambda name, _: PartitionStates(topic=name), name="partitions"),
)  # fmt: skip


def _handler(service: HttpService, route: _Route) -> Callable[..., Awaitable[Response]]:
    """Return the handler of a route, with the parameters of its path."""

    async def run(name: str, request: Request) -> Response:
        parse = partial(route.parse, name)
        changes, has_body = route.method != "GET", route.body is not None
        return await _run(service, request, route.action, parse, changes=changes, has_body=has_body)

    async def of_service(request: Request) -> Response:
        return await run("", request)

    async def of_namespace(tenant: str, namespace: str, request: Request) -> Response:
        return await run(f"tenants/{tenant}/namespaces/{namespace}", request)

    async def of_topic(tenant: str, namespace: str, topic: str, request: Request) -> Response:
        return await run(f"tenants/{tenant}/namespaces/{namespace}/topics/{topic}", request)

    if route.path.startswith(TOPIC):
        return of_topic
    return of_namespace if route.path.startswith(NAMESPACE) else of_service


def _add_actions(app: Application, service: HttpService) -> None:
    """Add the endpoint of actions to an application."""

    async def action(name: _Name, request: Request) -> Response:
        found = ACTIONS.get(name)
        if found is None:
            raise HTTPException(
                HTTPStatus.NOT_FOUND, f"there is no such action{suggested(name, ACTIONS)}"
            )
        parse, changes = found.body.parse_body, name not in _READING
        return await _run(service, request, name, parse, changes=changes)

    about = described(Any, errors=_STATUSES)
    # Each action has a body of its own; empty counts as an empty object.
    body = {"required": False, "content": {"application/json": {"schema": {"type": "object"}}}}
    about["openapi_extra"] = {"requestBody": body}
    app.add(PATH, action, "POST", tags=["actions"], description=_description(), **about)


def _description() -> str:
    """Return the description of the endpoint: the actions, with a sentence each."""
    lines = (
        f"- `{name}`: {' '.join(found.description.split())}"
        for name, found in sorted(ACTIONS.items())
    )
    return (
        "Run an action, as Arrow Flight's DoAction does, with the same body, which may be omitted "
        "if it has no keys, and the same response.\n\n" + "\n".join(lines)
    )


async def _run(
    service: HttpService,
    request: Request,
    name: str,
    parse: Callable[[bytes], ActionBody],
    *,
    changes: bool,
    has_body: bool = True,
) -> Response:
    """Run an action for the principal of a request, with what `parse` makes of its body."""
    with service.call(), Body(service.bodies) as body:
        raw = await body.receive(request, JSON_BYTES_MAX) if has_body else b""
        principal, secret = principal_of(request), secret_presented(request)
        run = service.write if changes else service.read
        answer = await run(lambda: encoded(service.gate.run(principal, name, parse(raw), secret)))
        return JsonAnswer(answer, service.answers, is_of_change=changes)
