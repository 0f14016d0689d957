"""The application's routes, and their OpenAPI document, with models of responses for it alone.

Handlers parse bodies from raw bytes with models of `wings_core`, so their schemas are added here.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from wings_core.contracts.actions import CreateTopic, NamespaceBody
from wings_core.contracts.messages import Message
from wings_core.contracts.sql import SqlBody
from wings_core.model import TopicConfig
from wings_core.schemas import FieldSpec
from wings_server.http.bodies import (
    AlterTopicBody,
    FetchBody,
    PushBody,
    ShareAcknowledgeBody,
    ShareAcquireBody,
)
from wings_server.http.errors import ErrorBody

Handler = Callable[..., Awaitable[Response]]
"""A handler of `request`, and of the path's parameters by name."""

BODIES: tuple[type[Message], ...] = (
    FetchBody,
    PushBody,
    NamespaceBody,
    CreateTopic,
    AlterTopicBody,
    ShareAcquireBody,
    ShareAcknowledgeBody,
    SqlBody,
)
"""Models of the endpoints' bodies."""

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths that need no token."""

_SCHEME = "token"

_REFERENCE = "#/components/schemas/{model}Input"

_ERROR = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}}}

_ANYWHERE = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.INTERNAL_SERVER_ERROR,
             HTTPStatus.SERVICE_UNAVAILABLE)  # fmt: skip

_WITH_BODY = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_TIMEOUT,
              HTTPStatus.REQUEST_ENTITY_TOO_LARGE)  # fmt: skip

_TIME = Field(description="RFC 3339, UTC, six digits of fraction.")


class Application(Starlette):
    """A Starlette application; FastAPI only builds its OpenAPI document, on first use.

    Handlers parse requests themselves. FastAPI's routes would take a third of a server's start, and
    time of each request, to search for models that no handler has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router.redirect_slashes = False
        self._described: list[tuple[str, Handler, dict[str, Any]]] = []
        self._document: dict[str, Any] | None = None
        self._building = threading.Lock()
        self.add_route("/openapi.json", self._answer_document)

    def add(
        self,
        path: str,
        handler: Handler,
        method: str = "GET",
        *,
        is_described: bool = True,
        **about: Any,
    ) -> None:
        """Add a route for a single method.

        Args:
            path: Path with parameters in braces.
            handler: Handles the requests; its docstring is the description.
            method: The HTTP method.
            is_described: Whether the OpenAPI document includes it.
            about: Further arguments of `FastAPI.add_api_route` for the document.
        """

        async def answer(request: Request) -> Response:
            return await handler(request=request, **request.path_params)

        route = Route(path, answer)
        route.methods = {method}  # Starlette would add HEAD to GET.
        self.router.routes.append(route)
        if is_described:
            self._described.append((path, handler, {"methods": [method], **about}))

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, built on the first call."""
        with self._building:  # Concurrent callers wait for it.
            if self._document is None:
                self._document = self._build()
            return self._document

    def _build(self) -> dict[str, Any]:
        from fastapi import FastAPI

        described = FastAPI(
            title="Wings",
            version=version("wings-flight"),
            summary="A durable message log served over Arrow Flight, and in part over HTTP.",
        )
        for path, handler, about in self._described:
            described.add_api_route(path, handler, **about)
        return complete(described.openapi())

    async def _answer_document(self, request: Request) -> Response:
        del request
        return JSONResponse(await asyncio.to_thread(self.openapi))


def described(
    answer: Any, *, body: type[Message] | None = None, errors: Sequence[HTTPStatus] = ()
) -> dict[str, Any]:
    """Return the arguments of `FastAPI.add_api_route` that document a route.

    Args:
        answer: Model of the response with status 200.
        body: Model of the body, one of `BODIES`.
        errors: Further statuses, in addition to those of every endpoint.
    """
    statuses = {*errors, *_ANYWHERE, *(_WITH_BODY if body is not None else ())}
    responses: dict[int, Any] = {200: {"model": answer, "description": "Done."}}
    for status in sorted(statuses):
        # By reference: building a model for each would take most of the document's time.
        responses[int(status)] = {"content": _ERROR, "description": status.phrase}
    described: dict[str, Any] = {"responses": responses, "response_model": None}
    if body is not None:
        content = {"application/json": {"schema": {"$ref": _reference(body.__name__)}}}
        described["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return described


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Add the bodies to a document, and drop the framework's own errors."""
    _drop_framework_errors(document)
    schemas: dict[str, Any] = document["components"]["schemas"]
    for body in BODIES:
        schemas.update(_schemas(body))
    _add_security(document)
    return document


def _add_security(document: dict[str, Any]) -> None:
    """Document that every operation except the open ones takes a token and may reject it."""
    document["components"]["securitySchemes"] = {
        _SCHEME: {
            "type": "http",
            "scheme": "bearer",
            "description": "A token; needed once the server has one.",
        }
    }
    # The empty alternative is for servers without tokens.
    document["security"] = [{_SCHEME: []}, {}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path in OPEN_PATHS:
                operation["security"] = []
                continue
            for status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                answer = {"content": _ERROR, "description": status.phrase}
                operation["responses"].setdefault(str(int(status)), answer)


def _drop_framework_errors(document: dict[str, Any]) -> None:
    """Remove the framework's status 422, which no endpoint returns."""
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


def _reference(model: str) -> str:
    return _REFERENCE.format(model=model)


def _schemas(body: type[Message]) -> dict[str, Any]:
    """Return the schemas of a body and of its nested models, by name."""
    schema = body.model_json_schema(ref_template=_REFERENCE)
    nested: dict[str, Any] = schema.pop("$defs", {})
    for name, described in schema["properties"].items():
        if name not in body.nullable_keys:
            _forbid_null(described)
    for found in nested.values():
        for described in found.get("properties", {}).values():
            if "type" in described and described.get("default", "") is None:
                del described["default"]  # Null is refused.
    if body is CreateTopic:
        schema["oneOf"] = [{"required": ["schema"]}, {"required": ["schema_ipc"]}]
    return {f"{name}Input": found for name, found in [(body.__name__, schema), *nested.items()]}


def _forbid_null(described: dict[str, Any]) -> None:
    """Remove null from a key's schema, as an unset key must be absent."""
    kinds = [kind for kind in described.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) == 1 and described.pop("anyOf") != kinds:
        described.update(kinds[0])
        described.pop("default", None)


class _Answer(BaseModel):
    """A documented response, without other keys."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class NamespaceDescription(_Answer):
    """A namespace."""

    namespace: str
    created_at: str = _TIME


class SchemaDescription(_Answer):
    """A topic's columns."""

    fields: list[FieldSpec]


class TopicDescription(_Answer):
    """A topic."""

    topic: str = Field(description="The full name.")
    uuid: str
    columns: SchemaDescription = Field(alias="schema")
    schema_ipc: str = Field(description="Base64 of the schema as an Arrow IPC message.")
    schema_version: int = Field(description="Version of the schema, from 1.")
    partition_key: str | None
    config: TopicConfig
    created_at: str = _TIME


class PartitionDescription(_Answer):
    """The offsets and size of a partition."""

    partition: JsonValue
    log_start_offset: int = Field(description="First offset still stored.")
    next_offset: int = Field(description="Next offset to be assigned.")
    bytes: int
    last_timestamp: str | None


class PrincipalDescription(_Answer):
    """The caller."""

    name: str = Field(description="Name of its token; `anyone` while there are no tokens.")
    grants: list[str] = Field(description="Its rights, each as RIGHT=PATTERN.")


class NodeDescription(_Answer):
    """A process that serves the log."""

    flight: str
    http: str | None
    kafka: str | None
    since: str | None


class DiskDescription(_Answer):
    """The disk of the data directory."""

    free_bytes: int
    used_bytes: int
    watermark_bytes: int = Field(description="Free bytes below which pushes are refused.")


class MemoryDescription(_Answer):
    """The memory of the process that answers."""

    resident_bytes: int
    held_bytes: int = Field(description="Bytes that requests hold.")
    limit_bytes: int = Field(description="Bytes that requests may hold.")


class NeedDescription(_Answer):
    """Something that needs a person."""

    kind: Literal[
        "pushes_refused", "share_groups_closed", "disk_nearly_full", "object_store_fails",
        "certificate_ends", "backup_old", "node_silent", "dead_letters", "no_workers",
        "oldest_unfinished", "consumer_lag", "memory_nearly_full", "faults",
    ]  # fmt: skip
    message: str = Field(description="The finding, in one line.")
    remedy: str = Field(description="What to do about it, in one line.")
    topic: str | None = Field(default=None, description="Full name of the topic it is about.")
    group: str | None = Field(default=None, description="The share group it is about.")
    consumer: str | None = Field(default=None, description="The named consumer it is about.")
    count: int | None = Field(default=None, description="The number of messages, if of messages.")
    per_hour: int | None = Field(default=None, description="Dead letters of the last hour.")
    per_minute: int | None = Field(
        default=None, description="Messages by which a lag grew a minute, in the last ten minutes."
    )


class HealthDescription(_Answer):
    """State of the server, as far as the caller may know it."""

    version: str = Field(description="Version of the server.")
    tls: bool = Field(description="Whether the listeners use TLS.")
    principal: PrincipalDescription
    nodes: list[NodeDescription] | None = Field(description="Null: not for this token.")
    disk: DiskDescription | None = Field(
        description="Null: not for this token, or there is no data directory."
    )
    memory: MemoryDescription | None = Field(description="Null: not for this token.")
    errors_per_second: float | None = Field(
        description="Errors that this process answered in the last minute. Null: not for this "
        "token, or not known yet."
    )
    needs: list[NeedDescription] = Field(description="The most urgent first, at most 100.")
    needs_left_out: int = Field(description="How many more there are.")


class FetchSuccess(_Answer):
    """The messages read from a partition."""

    tag: Literal["success"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    partition_value: JsonValue
    start_offset: int
    end_offset: int | None = Field(description="Last offset, inclusive; null without messages.")
    next_offset: int = Field(description="Where to read on.")
    messages: list[dict[str, Any]] = Field(description="Objects of the topic's columns.")


class FetchFailure(_Answer):
    """The error of a partition that could not be read."""

    tag: Literal["error"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    partition_value: JsonValue
    message: str
    code: str


class FetchAnswer(_Answer):
    """A result for each partition, in the order of the request."""

    topics: list[Annotated[FetchSuccess | FetchFailure, Field(discriminator="tag")]]


class CommittedDescription(_Answer):
    """Offsets assigned to a batch in one partition."""

    partition_value: JsonValue
    start_offset: int
    end_offset: int = Field(description="Inclusive.")
    timestamp: str = _TIME


class PushSuccess(_Answer):
    """A committed batch; for a single partition, its four values are included here."""

    tag: Literal["success"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    committed: list[CommittedDescription] = Field(
        description="Ordered by first row of each partition; empty for an empty batch."
    )
    partition_value: JsonValue = None
    start_offset: int = 0
    end_offset: int = 0
    timestamp: str = ""


class PushFailure(_Answer):
    """A batch that was rejected as a whole."""

    tag: Literal["error"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    message: str
    code: str


class PushAnswer(_Answer):
    """The batches, in the order pushed."""

    batches: list[Annotated[PushSuccess | PushFailure, Field(discriminator="tag")]]


class DeliveryDescription(_Answer):
    """Messages of a partition that the member holds, under one lease."""

    partition: JsonValue
    start_offset: int
    end_offset: int = Field(description="Last offset, inclusive; deleted messages are included.")
    lease: str
    delivery_count: int = Field(description="Number of deliveries, this one included.")
    lock_duration_ms: int
    ordering: Literal["partition"] | None = Field(
        default=None, description="Present if the group is ordered."
    )
    traces: list[dict[str, str]] | None = Field(
        default=None,
        description="Trace headers of the spans that pushed the messages, if known.",
    )
    messages: list[dict[str, Any]] = Field(
        description="Objects of the topic's columns and all system columns."
    )


class AcquireAnswer(_Answer):
    """The deliveries; empty if no message became available."""

    deliveries: list[DeliveryDescription]
    end: Literal["max_messages", "min_messages", "deadline"] = Field(
        description="As many messages as requested, fewer, or none."
    )


class AcknowledgementDescription(_Answer):
    """The outcome of an acknowledgement."""

    partition: JsonValue
    first: int
    last: int
    code: str | None = Field(description="Null: it succeeded.")
    message: str = ""


class AcknowledgeAnswer(_Answer):
    """A result for each acknowledgement, in the order of the request."""

    results: list[AcknowledgementDescription]
