"""HTTP calls in the words of the API, for tests."""

import json
from collections.abc import Sequence
from typing import Any

import httpx

Json = dict[str, Any]

NAMESPACE = "tenants/default/namespaces/default"


def full(topic: str) -> str:
    """Return the full name of a topic in the default namespace."""
    return f"{NAMESPACE}/topics/{topic}"


def create_topic(
    http: httpx.Client, topic: str, fields: Sequence[str], partition_key: str | None = None
) -> Json:
    """Create a topic from fields like `"n: int64"` or `"n: int64 not null"`."""
    parsed: list[Json] = []
    for field in fields:
        name, kind = field.split(": ", 1)
        nullable = not kind.endswith(" not null")
        parsed.append({"name": name, "type": kind.removesuffix(" not null"), "nullable": nullable})
    body: Json = {"topic": topic, "schema": {"fields": parsed}}
    if partition_key is not None:
        body["partition_key"] = partition_key
    return good(http.post(f"/v1/{NAMESPACE}/topics", json=body))


def good(answer: httpx.Response) -> Any:
    """Return the JSON of an answer that must be good."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def error(answer: httpx.Response) -> tuple[int, str]:
    """Return status and code of an answer that must be an error, and of the documented form."""
    assert answer.status_code >= 400, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"message", "code"}
    assert body["message"]
    return answer.status_code, body["code"]


def entry(topic: str, offset: int = 0, **keys: Any) -> Json:
    """Return one partition to fetch."""
    return {"topic": topic, "offset": offset, **keys}


def fetch_body(*entries: Json, **keys: Any) -> Json:
    """Return the body of a fetch."""
    return {"namespace": NAMESPACE, "topics": list(entries), **keys}


def fetch(http: httpx.Client, *entries: Json, **keys: Any) -> list[Json]:
    """Fetch, and check the form of every result."""
    answer = good(http.post("/v1/fetch", json=fetch_body(*entries, **keys), timeout=60))
    assert answer.keys() == {"topics"}
    results: list[Json] = answer["topics"]
    assert len(results) == len(entries)
    for result in results:
        assert next(iter(result)) == "_tag"
        if result["_tag"] == "error":
            assert result.keys() == {"_tag", "topic", "partition_value", "message", "code"}
            continue
        assert list(result) == [
            "_tag", "topic", "partition_value", "start_offset", "end_offset", "next_offset",
            "messages",
        ]  # fmt: skip
        count = len(result["messages"])
        assert result["next_offset"] == result["start_offset"] + count
        assert result["end_offset"] == (result["next_offset"] - 1 if count else None)
    return results


def push_body(*batches: Json) -> Json:
    """Return the body of a push."""
    return {"namespace": NAMESPACE, "batches": list(batches)}


def push(http: httpx.Client, *batches: Json) -> list[Json]:
    """Push batches, and check the form of every result."""
    return push_text(http, json.dumps(push_body(*batches)).encode())


def push_text(http: httpx.Client, body: bytes) -> list[Json]:
    """Push a body as it is, and check the form of every result."""
    answer = good(http.post("/v1/push", content=body, timeout=60))
    assert answer.keys() == {"batches"}
    results: list[Json] = answer["batches"]
    single = ["partition_value", "start_offset", "end_offset", "timestamp"]
    for result in results:
        assert next(iter(result)) == "_tag"
        if result["_tag"] == "error":
            assert result.keys() == {"_tag", "topic", "message", "code"}
            continue
        assert list(result)[:3] == ["_tag", "topic", "committed"]
        committed: list[Json] = result["committed"]
        assert all(list(found) == single for found in committed)
        at_top = {key: result[key] for key in single if key in result}
        assert at_top == (committed[0] if len(committed) == 1 else {})
    return results
