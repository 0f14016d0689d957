import json
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from threading import Event
from typing import cast

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from wings_core import errors
from wings_server.http.api import add_api
from wings_server.http.app import create_app
from wings_server.http.application import Application
from wings_server.http.errors import status_of
from wings_server.http.listener import HttpListener
from wings_server.http.service import HttpService
from wings_server.settings import Address

ANY_PORT = Address("127.0.0.1", 0)

DOCUMENTED = {
    400: "INVALID_ARGUMENT INVALID_NAME INVALID_TICKET INVALID_SCHEMA SCHEMA_MISMATCH "
    "PARTITION_REQUIRED PARTITION_NOT_ALLOWED PARTITION_TYPE_MISMATCH INVALID_FILTER "
    "INVALID_SQL",
    404: "NAMESPACE_NOT_FOUND TOPIC_NOT_FOUND GROUP_NOT_FOUND STAGE_NOT_FOUND TOKEN_NOT_FOUND",
    409: "ALREADY_EXISTS NAMESPACE_NOT_EMPTY OFFSET_MISMATCH OUT_OF_ORDER_SEQUENCE "
    "PUBLISH_FENCED FENCED_MEMBER INVALID_RECORD_STATE",
    416: "OFFSET_OUT_OF_RANGE",
    413: "BATCH_TOO_LARGE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    500: "STORAGE_CORRUPT INTERNAL",
}

_NAMESPACE = "v1_tenants__tenant__namespaces__namespace_"
OPERATIONS = {
    "alter_topic_v1_tenants__tenant__namespaces__namespace__topics__topic__patch",
    "health_v1_health_get",
    "healthz_healthz_get",
    "readyz_readyz_get",
    "metrics_metrics_get",
    "fetch_v1_fetch_post",
    "push_v1_push_post",
    "action_v1_actions__name__post",
    "sql_v1_sql_post",
    "share_acquire_v1_share_acquire_post",
    "share_acknowledge_v1_share_acknowledge_post",
    "list_namespaces_v1_namespaces_get",
    "create_namespace_v1_namespaces_post",
    f"delete_namespace_{_NAMESPACE}_delete",
    f"list_topics_{_NAMESPACE}_topics_get",
    f"create_topic_{_NAMESPACE}_topics_post",
    f"describe_topic_{_NAMESPACE}_topics__topic__get",
    f"delete_topic_{_NAMESPACE}_topics__topic__delete",
    f"partitions_{_NAMESPACE}_topics__topic__partitions_get",
}
"""The operationId of each endpoint: generators of clients name their calls by it."""


def app_with_faults() -> Application:
    """The application, with routes that fail in every way that a handler may."""
    app = create_app(lambda: True)

    async def refused(request: Request) -> Response:
        raise errors.TopicNotFound("there is no topic x", topic="x")

    async def fault(request: Request) -> Response:
        raise ZeroDivisionError("secret")

    app.add("/refused", refused)
    app.add("/fault", fault)
    return app


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    listener = HttpListener(app_with_faults(), ANY_PORT)
    with httpx.Client(base_url=f"http://{listener.address}") as client:
        yield client
    listener.stop()


def test_health_and_readiness_are_told(http: httpx.Client) -> None:
    for path in ("/healthz", "/readyz"):
        answer = http.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_a_server_that_is_not_ready_is_alive() -> None:
    ready = Event()
    listener = HttpListener(create_app(ready.is_set), ANY_PORT)
    with httpx.Client(base_url=f"http://{listener.address}") as client:
        assert client.get("/healthz").status_code == 200
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {
            "message": "the server is starting or stopping",
            "code": "UNAVAILABLE",
        }
        ready.set()
        assert client.get("/readyz").status_code == 200
    listener.stop()


def test_the_document_is_served(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert {"/healthz", "/readyz"} <= document["paths"].keys()
    assert "503" in document["paths"]["/readyz"]["get"]["responses"]


def test_operations_keep_the_ids_that_generated_clients_know() -> None:
    app = create_app(lambda: True)
    add_api(app, cast("HttpService", None))
    operations = [each for path in app.openapi()["paths"].values() for each in path.values()]
    assert {each["operationId"] for each in operations} == OPERATIONS


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/none", 404, "NOT_FOUND"),
        ("GET", "/healthz/", 404, "NOT_FOUND"),
        ("GET", "/docs", 404, "NOT_FOUND"),
        ("POST", "/healthz", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/refused", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/fault", 500, "INTERNAL"),
    ],
)
def test_every_error_is_a_message_and_a_code(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status
    body = answer.json()
    assert body.keys() == {"message", "code"}
    assert body["code"] == code
    assert body["message"]
    assert "secret" not in body["message"]


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000, 431),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    ],
    ids=["no request", "no length", "a head that is too long", "no host"],
)
def test_what_is_not_http_is_answered_in_the_form_of_every_error(
    http: httpx.Client, request_text: bytes, status: int
) -> None:
    url = http.base_url
    with socket.create_connection((url.host, url.port or 0), timeout=20) as connection:
        connection.sendall(request_text)
        answer = HTTPResponse(connection)
        answer.begin()
        body = json.loads(answer.read())
    assert (answer.status, answer.getheader("content-type")) == (status, "application/json")
    assert body.keys() == {"message", "code"}
    assert body["code"] == "INVALID_ARGUMENT"


def test_a_method_that_is_not_allowed_tells_those_that_are(http: httpx.Client) -> None:
    assert http.post("/healthz").headers["allow"] == "GET"


def test_each_code_has_its_documented_status() -> None:
    documented = {code: status for status, codes in DOCUMENTED.items() for code in codes.split()}
    found = {code: int(status_of(cls("x"))) for code, cls in errors.ERRORS_BY_CODE.items()}
    assert found == documented


def test_a_stopped_listener_gives_its_port_back() -> None:
    first = HttpListener(create_app(lambda: True), ANY_PORT)
    address = first.address
    assert address.port != 0
    with httpx.Client(base_url=f"http://{address}") as client:
        assert client.get("/healthz").status_code == 200
        first.stop()
        with pytest.raises(httpx.TransportError):
            client.get("/healthz")
    second = HttpListener(create_app(lambda: True), address)
    assert httpx.get(f"http://{address}/healthz").status_code == 200
    second.stop()


def test_a_stop_ends_a_request_that_does_not_end_by_itself() -> None:
    entered = Event()
    app = create_app(lambda: True)

    async def hang(request: Request) -> Response:
        from asyncio import Event as Never

        entered.set()
        await Never().wait()
        raise AssertionError(request)

    app.add("/hang", hang)
    listener = HttpListener(app, ANY_PORT)
    with socket.create_connection((listener.address.host, listener.address.port)) as client:
        client.sendall(b"GET /hang HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert entered.wait(30)
        listener.stop()
        client.settimeout(30)
        while client.recv(4096):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((listener.address.host, listener.address.port))


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(
            errors.Unavailable, match=f"cannot listen on {address}: Address already in use"
        ):
            HttpListener(create_app(lambda: True), address)


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(errors.Unavailable, match=r"cannot listen on nosuch\.invalid:80: "):
        HttpListener(create_app(lambda: True), Address("nosuch.invalid", 80))
