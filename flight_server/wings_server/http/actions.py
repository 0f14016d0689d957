"""`POST /v1/actions/NAME`: every action of Flight's DoAction, with the same body and response."""

from http import HTTPStatus
from typing import Annotated, Any

from pydantic import WithJsonSchema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from wings_core.contracts.messages import JSON_BYTES_MAX
from wings_core.errors import suggested
from wings_server.action import Action, encoded
from wings_server.actions import ACTIONS
from wings_server.http.application import Application
from wings_server.http.authentication import principal_of, secret_presented
from wings_server.http.documentation import described
from wings_server.http.service import HttpService
from wings_server.http.wire import Body, JsonAnswer

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


def add_actions(app: Application, service: HttpService) -> None:
    """Add the endpoint of actions to an application."""

    async def action(name: _Name, request: Request) -> Response:
        found = ACTIONS.get(name)
        if found is None:
            raise HTTPException(
                HTTPStatus.NOT_FOUND, f"there is no such action{suggested(name, ACTIONS)}"
            )
        return await _run(service, name, found, request)

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


async def _run(service: HttpService, name: str, found: "Action[Any]", request: Request) -> Response:
    with service.call(), Body(service.bodies) as body:
        raw = await body.receive(request, JSON_BYTES_MAX)
        principal, secret = principal_of(request), secret_presented(request)
        reads = name in _READING
        run = service.read if reads else service.write

        def work() -> bytes:
            answer = service.gate.run(principal, name, found.body.parse_body(raw), secret)
            return encoded(answer)

        return JsonAnswer(await run(work), service.answers, is_of_change=not reads)
