"""The OpenAPI document tells the truth: requests made from it meet only what it says."""

import json
import re
from typing import Any, cast

import httpx
import pytest
from http_calls import create_topic, push
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy
from property_examples import examples

from wings_server.http.sql import ARROW, CSV
from wings_server.testing import RunningServer

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.mark.timeout(300)
@pytest.mark.hypothesis
def test_requests_made_from_the_document_meet_only_what_it_says(server: RunningServer) -> None:
    import schemathesis  # Takes half a second, of each process that shares the tests.
    from schemathesis import GenerationMode

    with httpx.Client(base_url=server.http) as http:
        create_topic(http, "t", ["n: int64", "k: string not null"], "k")
        push(http, {"topic": "t", "data": [{"n": 1, "k": "a"}]})
        http.post("/v1/sql", json={"sql": "select 1"}, timeout=120)  # Starts a process for others.
    api = schemathesis.openapi.from_url(f"{server.http}/openapi.json")
    operations: list[Any] = [found.ok() for found in cast("Any", api.get_all_operations())]
    for operation in operations:
        _try(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
        if operation.body:  # Any string is a good path parameter: without a body, none is bad.
            _try(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))


def _try(cases: SearchStrategy[Any]) -> None:
    """Make requests; fails where none can be made."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    wanted = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.negative_data_rejection,
        checks.unsupported_method,
    ]

    @given(cases)
    @settings(max_examples=examples(2, 15), suppress_health_check=SLOW, database=None)
    def make(case: Any) -> None:
        body: Any = case.body
        if isinstance(body, dict) and isinstance(body.get("timeout_ms"), int):  # pyright: ignore[reportUnknownMemberType]
            body["timeout_ms"] = min(5, body["timeout_ms"])  # pyright: ignore[reportUnknownArgumentType] - nothing waits long
        case.call_and_validate(checks=wanted, timeout=30)

    make()


@pytest.fixture(scope="module")
def document(server: RunningServer) -> dict[str, Any]:
    return httpx.get(f"{server.http}/openapi.json").json()


def test_every_endpoint_is_in_the_document(document: dict[str, Any]) -> None:
    namespace = "/v1/tenants/{tenant}/namespaces/{namespace}"
    found = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert found == {
        ("/healthz", "get"), ("/readyz", "get"), ("/metrics", "get"),
        ("/v1/fetch", "post"), ("/v1/push", "post"), ("/v1/sql", "post"),
        ("/v1/actions/{name}", "post"),
        ("/v1/share/acquire", "post"), ("/v1/share/acknowledge", "post"),
        ("/v1/health", "get"),
        ("/v1/namespaces", "get"), ("/v1/namespaces", "post"), (namespace, "delete"),
        (f"{namespace}/topics", "get"), (f"{namespace}/topics", "post"),
        (f"{namespace}/topics/{{topic}}", "get"), (f"{namespace}/topics/{{topic}}", "delete"),
        (f"{namespace}/topics/{{topic}}", "patch"),
        (f"{namespace}/topics/{{topic}}/partitions", "get"),
    }  # fmt: skip


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)))
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references == names


def test_no_default_is_null_where_null_is_refused(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        for described in schema.get("properties", {}).values():
            assert "type" not in described or described.get("default", "") is not None


def test_a_statement_is_answered_in_three_forms(document: dict[str, Any]) -> None:
    answered = document["paths"]["/v1/sql"]["post"]["responses"]["200"]["content"]
    assert answered.keys() == {"application/json", CSV, ARROW}


def test_errors_are_described_by_one_model(document: dict[str, Any]) -> None:
    for methods in document["paths"].values():
        for operation in methods.values():
            assert "422" not in operation["responses"]
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    schema = response["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/ErrorBody"}
