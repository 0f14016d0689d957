"""The OpenAPI document: schemas of bodies and errors that the framework does not know.

Handlers parse bodies from raw bytes with models of `wings_core`, so their schemas are added here.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from wings_core.contracts.actions import CreateTopic, NamespaceBody
from wings_core.contracts.messages import Message
from wings_core.contracts.sql import SqlBody
from wings_server.http.bodies import (
    AlterTopicBody,
    FetchBody,
    PushBody,
    ShareAcknowledgeBody,
    ShareAcquireBody,
)
from wings_server.http.errors import ErrorBody

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
    if body is CreateTopic:
        schema["oneOf"] = [{"required": ["schema"]}, {"required": ["schema_ipc"]}]
    return {f"{name}Input": found for name, found in [(body.__name__, schema), *nested.items()]}


def _forbid_null(described: dict[str, Any]) -> None:
    """Remove null from a key's schema, as an unset key must be absent."""
    kinds = [kind for kind in described.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) == 1 and described.pop("anyOf") != kinds:
        described.update(kinds[0])
        described.pop("default", None)
