"""`POST /v1/fetch`: what a request is told, what it gets, and what it may not ask."""

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fix_calls import Calls
from http_calls import (
    NAMESPACE,
    create_topic,
    entry,
    error,
    fetch,
    fetch_body,
    full,
    good,
    push,
)
from tables import each

from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


def values(result: dict[str, Any]) -> list[int]:
    return [message["n"] for message in result["messages"]]


def test_messages_come_in_order_with_the_offsets_of_the_first_and_last(
    http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    push(http, {"topic": new_topic_id, "data": numbers(*range(5))})
    (result,) = fetch(http, entry(new_topic_id, 2))
    assert result == {
        "_tag": "success",
        "topic": full(new_topic_id),
        "partition_value": None,
        "start_offset": 2,
        "end_offset": 4,
        "next_offset": 5,
        "messages": numbers(2, 3, 4),
    }


def test_results_come_in_the_order_asked_by_full_name_or_bare_id(
    http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["k: string not null", "n: int64"], "k")
    rows = [{"k": "b", "n": 1}, {"k": "a", "n": 2}, {"k": "b", "n": 3}]
    push(http, {"topic": new_topic_id, "data": rows})
    b, a = fetch(
        http,
        entry(full(new_topic_id), partition_value="b"),
        entry(new_topic_id, partition_value="a"),
    )
    assert [(b["partition_value"], values(b)), (a["partition_value"], values(a))] == [
        ("b", [1, 3]),
        ("a", [2]),
    ]
    assert b["topic"] == a["topic"] == full(new_topic_id)


@pytest.mark.parametrize(
    ("key_type", "value"),
    [
        ("int64", -7), ("uint64", (1 << 64) - 1), ("string", 'ü"\\\n'), ("string", ""),
        ("binary", "AP8="), ("bool", True),
    ],
)  # fmt: skip
def test_a_partition_is_named_by_a_value_of_its_keys_kind(
    http: httpx.Client, new_topic_id: str, key_type: str, value: Any
) -> None:
    create_topic(http, new_topic_id, [f"k: {key_type} not null", "n: int64"], "k")
    push(http, {"topic": new_topic_id, "data": [{"k": value, "n": 1}]})
    (result,) = fetch(http, entry(new_topic_id, partition_value=value))
    assert (result["partition_value"], result["messages"]) == (value, [{"k": value, "n": 1}])


def test_max_messages_bounds_the_whole_request(http: httpx.Client, new_topic_id: str) -> None:
    create_topic(http, new_topic_id, ["k: int64 not null", "n: int64"], "k")
    rows = [{"k": key, "n": n} for n in range(100) for key in range(3)]
    push(http, {"topic": new_topic_id, "data": rows})
    results = fetch(
        http,
        *[entry(new_topic_id, partition_value=key) for key in range(3)],
        max_messages=100,
    )
    counts = [len(result["messages"]) for result in results]
    assert sum(counts) == 100
    assert min(counts) >= 20, "no partition starves another"
    for result, count in zip(results, counts, strict=True):
        assert values(result) == list(range(count))


def test_one_partition_with_few_leaves_its_share_to_the_others(
    http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["k: int64 not null", "n: int64"], "k")
    rows = [{"k": 0, "n": 0}, *[{"k": 1, "n": n} for n in range(50)]]
    push(http, {"topic": new_topic_id, "data": rows})
    few, many, none = fetch(
        http,
        *[entry(new_topic_id, partition_value=key) for key in range(3)],
        max_messages=40,
    )
    assert (len(few["messages"]), len(many["messages"])) == (1, 39)
    assert none["messages"] == []


def test_an_entry_that_cannot_be_read_fails_alone(http: httpx.Client, new_topic_id: str) -> None:
    plain = new_topic_id + "-plain"
    create_topic(http, new_topic_id, ["k: int64 not null", "n: int64"], "k")
    create_topic(http, plain, ["n: int64"])
    push(http, {"topic": plain, "data": numbers(1)}, {"topic": new_topic_id, "data": [{"k": 1}]})
    results = fetch(
        http,
        entry(new_topic_id),
        entry(new_topic_id, partition_value="1"),
        entry(new_topic_id, partition_value=1.0),
        entry(new_topic_id, partition_value={"k": [1]}),
        entry(new_topic_id, partition_value=1 << 63),
        entry(plain, partition_value=1),
        entry(plain),
        entry(new_topic_id, partition_value=1),
    )
    assert [result.get("code") for result in results] == [
        "PARTITION_REQUIRED",
        *["PARTITION_TYPE_MISMATCH"] * 4,
        "PARTITION_NOT_ALLOWED",
        None,
        None,
    ]
    assert results[3]["partition_value"] == {"k": [1]}
    assert values(results[6]) == [1]


def test_entries_that_all_fail_are_answered_at_once(http: httpx.Client, new_topic_id: str) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    began = time.monotonic()
    (result,) = fetch(http, entry(new_topic_id, partition_value=1), timeout_ms=30_000)
    assert result["code"] == "PARTITION_NOT_ALLOWED"
    assert time.monotonic() - began < 20


def test_past_the_end_it_waits_until_the_time_and_is_empty(
    http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    push(http, {"topic": new_topic_id, "data": numbers(1)})
    for offset in (1, 1000, (1 << 63) - 1):
        began = time.monotonic()
        (result,) = fetch(http, entry(new_topic_id, offset), timeout_ms=200)
        assert time.monotonic() - began >= 0.199
        assert (result["start_offset"], result["end_offset"]) == (offset, None)
        assert (result["next_offset"], result["messages"]) == (offset, [])


def test_a_request_that_names_no_time_waits_half_a_second(
    http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    began = time.monotonic()
    fetch(http, entry(new_topic_id))
    assert time.monotonic() - began >= 0.499


class Background:
    """A fetch on a thread of its own."""

    def __init__(self, server: RunningServer, *entries: Any, **keys: Any) -> None:
        self.results: list[Any] = []
        self._waits = server.server.log.fetcher.waits
        self._begun = self._waits.begun

        def run() -> None:
            with httpx.Client(base_url=server.http) as http:
                self.results = fetch(http, *entries, **keys)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def wait_until_waiting(self) -> None:
        while self._waits.begun == self._begun:
            time.sleep(0.002)

    def join(self) -> list[Any]:
        self._thread.join()
        return self.results


def test_a_wait_ends_with_the_first_commit_also_of_a_partition_never_written_to(
    server: RunningServer, http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["k: string not null", "n: int64"], "k")
    keys = ("a", "b", "c")
    poll = Background(
        server, *[entry(new_topic_id, partition_value=key) for key in keys], timeout_ms=60_000
    )
    poll.wait_until_waiting()
    push(http, {"topic": new_topic_id, "data": [{"k": "other", "n": 0}]})
    push(http, {"topic": new_topic_id, "partition_value": "b", "data": numbers(7)})
    assert [values(result) for result in poll.join()] == [[], [7], []]


def test_min_messages_are_counted_over_the_whole_request(
    server: RunningServer, http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["k: int64 not null", "n: int64"], "k")
    poll = Background(
        server,
        *[entry(new_topic_id, partition_value=key) for key in range(3)],
        timeout_ms=60_000,
        min_messages=5,
        max_messages=6,
    )
    poll.wait_until_waiting()
    for n in range(5):
        push(http, {"topic": new_topic_id, "partition_value": n % 3, "data": numbers(n)})
    assert sorted(n for result in poll.join() for n in values(result)) == [0, 1, 2, 3, 4]


def test_a_trickle_does_not_lengthen_the_wait(
    server: RunningServer, http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    push(http, {"topic": new_topic_id, "data": numbers(0)})
    began = time.monotonic()
    poll = Background(server, entry(new_topic_id), timeout_ms=700, min_messages=100_000,
                      max_messages=100_000)  # fmt: skip
    pushed = 1
    while not poll.results:
        push(http, {"topic": new_topic_id, "data": numbers(pushed)})
        pushed += 1
        assert time.monotonic() - began < 60
    (result,) = poll.join()
    got = values(result)
    assert got == list(range(len(got)))
    assert 0 < len(got) <= pushed


def test_exactly_min_messages_at_the_tail_come_at_once(
    http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    push(http, {"topic": new_topic_id, "data": numbers(1, 2, 3)})
    began = time.monotonic()
    (result,) = fetch(http, entry(new_topic_id), min_messages=3, max_messages=3, timeout_ms=60_000)
    assert values(result) == [1, 2, 3]
    assert time.monotonic() - began < 30


def test_a_topic_deleted_during_the_wait_fails_its_entry(
    server: RunningServer, http: httpx.Client, new_topic_id: str
) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    poll = Background(server, entry(new_topic_id), timeout_ms=60_000)
    poll.wait_until_waiting()
    good(http.delete(f"/v1/{full(new_topic_id)}"))
    (result,) = poll.join()
    assert result["code"] == "TOPIC_NOT_FOUND"


# What fails the request.

GOOD = {"topic": "none", "offset": 0}


@each(
    ("body", "code"),
    [
        (fetch_body(GOOD, more=1), "INVALID_ARGUMENT"),
        (fetch_body({**GOOD, "more": 1}), "INVALID_ARGUMENT"),
        (fetch_body({**GOOD, "partition": 1}), "INVALID_ARGUMENT"),
        (fetch_body(), "INVALID_ARGUMENT"),
        ({"namespace": NAMESPACE}, "INVALID_ARGUMENT"),
        ({"topics": [GOOD]}, "INVALID_ARGUMENT"),
        ({"namespace": NAMESPACE, "topics": GOOD}, "INVALID_ARGUMENT"),
        ({"namespace": NAMESPACE, "topics": None}, "INVALID_ARGUMENT"),
        (fetch_body({"topic": "none"}), "INVALID_ARGUMENT"),
        (fetch_body({"offset": 0}), "INVALID_ARGUMENT"),
        *[
            (fetch_body({"topic": "none", "offset": offset}), "INVALID_ARGUMENT")
            for offset in (-1, 1.0, 1.5, "0", True, None, "earliest", {}, 1 << 63)
        ],
        *[
            (fetch_body(GOOD, timeout_ms=value), "INVALID_ARGUMENT")
            for value in (0, 1, 300_001, 1.5, "500", None, True)
        ],
        *[
            (fetch_body(GOOD, max_messages=value), "INVALID_ARGUMENT")
            for value in (0, 100_001, "1", None)
        ],
        (fetch_body(GOOD, min_messages=0), "INVALID_ARGUMENT"),
        (fetch_body(GOOD, min_messages=100_001, max_messages=100_000), "INVALID_ARGUMENT"),
        (fetch_body(GOOD, min_messages=3, max_messages=2), "INVALID_ARGUMENT"),
        (fetch_body(GOOD, min_messages=10_001), "INVALID_ARGUMENT"),
        (fetch_body(GOOD, namespace="default"), "INVALID_NAME"),
        (fetch_body(GOOD, namespace=""), "INVALID_NAME"),
        (fetch_body(GOOD, namespace=full("none")), "INVALID_NAME"),
        (fetch_body(GOOD, namespace=1), "INVALID_ARGUMENT"),
        (fetch_body(entry("Bad Name")), "INVALID_NAME"),
        (fetch_body(entry("")), "INVALID_NAME"),
        (fetch_body(entry("tenants/default/namespaces/other/topics/none")), "INVALID_ARGUMENT"),
        (fetch_body(GOOD, GOOD), "INVALID_ARGUMENT"),
        (fetch_body(entry("none", 1), entry(full("none"), 2)), "INVALID_ARGUMENT"),
        (fetch_body(entry("none"), entry("none", partition_value=None)), "INVALID_ARGUMENT"),
        (fetch_body(*[entry("none", partition_value={"a": 1, "b": 2})] * 2), "INVALID_ARGUMENT"),
        ([], "INVALID_ARGUMENT"),
        (None, "INVALID_ARGUMENT"),
        ("x", "INVALID_ARGUMENT"),
    ],
)  # fmt: skip
def test_a_bad_body_is_refused_before_anything_is_looked_up(
    http: httpx.Client, body: Any, code: str
) -> None:
    assert error(http.post("/v1/fetch", json=body)) == (400, code)


@each(
    "body",
    [
        b"", b"{", b"nul", b"\xff", b'{"namespace": "\xff"}', b"[" * 100_000, b"{} {}",
        b'{"namespace": "a", "namespace": "b"}', b'{"min_messages": NaN}',
        json.dumps(fetch_body(GOOD)).encode().replace(b'"offset": 0', b'"offset": 0, "offset": 0'),
        json.dumps(fetch_body(GOOD)).encode("utf-16"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(http: httpx.Client, body: bytes) -> None:
    assert error(http.post("/v1/fetch", content=body)) == (400, "INVALID_ARGUMENT")


def test_a_body_that_is_too_long_is_refused(http: httpx.Client) -> None:
    body = b" " * (4 * 1024 * 1024 + 1)
    assert error(http.post("/v1/fetch", content=body)) == (413, "BATCH_TOO_LARGE")


def test_an_unknown_topic_or_namespace_is_not_found(http: httpx.Client, new_topic_id: str) -> None:
    create_topic(http, new_topic_id, ["n: int64"])
    body = fetch_body(entry(new_topic_id), entry("none"))
    assert error(http.post("/v1/fetch", json=body)) == (404, "TOPIC_NOT_FOUND")
    other = fetch_body(entry("none"), namespace="tenants/default/namespaces/other")
    assert error(http.post("/v1/fetch", json=other)) == (404, "NAMESPACE_NOT_FOUND")


def test_a_bare_id_is_of_the_bodys_namespace(http: httpx.Client, new_topic_id: str) -> None:
    other = f"tenants/acme/namespaces/{new_topic_id}"
    good(http.post("/v1/namespaces", json={"namespace": other}))
    fields = {"fields": [{"name": "n", "type": "int64"}]}
    good(http.post(f"/v1/{other}/topics", json={"topic": "t", "schema": fields}))
    body = {"namespace": other, "batches": [{"topic": "t", "data": numbers(1)}]}
    good(http.post("/v1/push", json=body))
    answer = good(http.post("/v1/fetch", json=fetch_body(entry("t"), namespace=other)))
    assert answer["topics"][0]["topic"] == f"{other}/topics/t"
    assert values(answer["topics"][0]) == [1]


# The bound on an answer's bytes.


def test_an_answer_has_fewer_messages_than_asked_where_they_are_long() -> None:
    with (
        running_server(limits=Limits(http_bytes_max=10_000)) as server,
        httpx.Client(base_url=server.http) as http,
    ):
        create_topic(http, "t", ["k: int64 not null", "text: string"], "k")
        for key in (1, 2):
            rows = [{"text": f"{n:05}" + "x" * 1_000} for n in range(20)]
            push(http, {"topic": "t", "partition_value": key, "data": rows})
        offsets = {1: 0, 2: 0}
        seen: dict[int, list[str]] = {1: [], 2: []}
        while min(offsets.values()) < 20:
            entries = [entry("t", offset, partition_value=key) for key, offset in offsets.items()]
            answer = http.post("/v1/fetch", json=fetch_body(*entries))
            assert len(answer.content) <= 10_000
            results = good(answer)["topics"]
            assert all(result["messages"] for result in results if result["start_offset"] < 20)
            for result in results:
                key = result["partition_value"]
                seen[key] += [message["text"][:5] for message in result["messages"]]
                offsets[key] = result["next_offset"]
        assert seen == {key: [f"{n:05}" for n in range(20)] for key in (1, 2)}


def test_one_message_is_returned_however_long_it_is() -> None:
    with (
        running_server(limits=Limits(http_bytes_max=1_000)) as server,
        httpx.Client(base_url=server.http) as http,
    ):
        create_topic(http, "t", ["text: string"])
        push(http, {"topic": "t", "data": [{"text": "x" * 5_000}, {"text": "y"}]})
        (result,) = fetch(http, entry("t"))
        assert [len(message["text"]) for message in result["messages"]] == [5_000]
        (result,) = fetch(http, entry("t", 1))
        assert result["messages"] == [{"text": "y"}]


def test_the_partitions_of_a_topic_are_looked_up_together(
    http: httpx.Client,
    server: RunningServer,
    new_topic_id: str,
    calls: Calls,
) -> None:
    create_topic(http, new_topic_id, ["k: int64 not null", "n: int64"], "k")
    rows = [{"k": key, "n": key * 10 + number} for key in range(40) for number in range(3)]
    push(http, {"topic": new_topic_id, "data": rows})
    alone = calls.heard(server.server.log.registry, "locate")
    results = fetch(http, *(entry(new_topic_id, 1, partition_value=key) for key in range(41)))
    assert [values(result) for result in results[:40]] == [
        [key * 10 + 1, key * 10 + 2] for key in range(40)
    ]
    assert values(results[40]) == []
    assert alone == []


def test_the_entries_of_a_topic_are_read_together(
    http: httpx.Client,
    server: RunningServer,
    new_topic_id: str,
    calls: Calls,
) -> None:
    other = new_topic_id + "-other"
    looks = calls.heard(server.server.log.registry, "locate_many")
    for name in (new_topic_id, other):
        create_topic(http, name, ["k: int64 not null", "n: int64"], "k")
        rows = [{"k": key, "n": key * 10 + number} for key in range(30) for number in range(3)]
        push(http, {"topic": name, "data": rows}, {"topic": name, "data": rows})
    entries = [
        entry(name, 2, partition_value=key) for key in range(30) for name in (new_topic_id, other)
    ]
    results = fetch(http, *entries)
    assert [values(result) for result in results] == [
        [key * 10 + number for number in (2, 0, 1, 2)] for key in range(30) for _ in range(2)
    ]
    assert [len(positions) for _, positions, *_ in looks] == [30, 30]


@pytest.mark.parametrize("seed", range(12))
def test_read_together_or_not_each_gets_its_messages_within_the_bounds(
    http: httpx.Client, new_topic_id: str, seed: int
) -> None:
    draw = random.Random(seed)
    create_topic(http, new_topic_id, ["k: int64 not null", "n: int64"], "k")
    logs: dict[int, list[int]] = {key: [] for key in range(8)}
    for _ in range(draw.randint(1, 4)):
        rows: list[dict[str, int]] = []
        for key in draw.sample(range(8), draw.randint(1, 8)):
            for _ in range(draw.choice((1, 2, 30))):
                rows.append({"k": key, "n": len(logs[key])})
                logs[key].append(len(logs[key]))
        push(http, {"topic": new_topic_id, "data": rows})
    for _ in range(8):
        keys = draw.sample(range(8), draw.randint(2, 8))
        offsets = [draw.randint(0, len(logs[key]) + 1) for key in keys]
        most = draw.choice((1, 3, 10, 1_000))
        asked = zip(keys, offsets, strict=True)
        results = fetch(
            http,
            *[entry(new_topic_id, offset, partition_value=key) for key, offset in asked],
            max_messages=most,
            timeout_ms=2,
        )
        there = [logs[key][offset:] for key, offset in zip(keys, offsets, strict=True)]
        found = [values(result) for result in results]
        for some, all_of, offset, result in zip(found, there, offsets, results, strict=True):
            assert some == all_of[: len(some)]
            assert result["start_offset"] == offset
            assert result["next_offset"] == offset + len(some)
        assert sum(map(len, found)) == min(most, sum(map(len, there)))


def test_an_entry_with_a_damaged_page_fails_alone(tmp_path: Path) -> None:
    def rows(key: int) -> list[dict[str, Any]]:
        return [{"k": key, "text": f"{key} {number:0100}"} for number in range(1_000)]

    with running_server(tmp_path) as server, httpx.Client(base_url=server.http) as http:
        create_topic(http, "t", ["k: int64 not null", "text: string"], "k")
        for key in range(3):
            push(http, {"topic": "t", "data": rows(key)})
    (segment,) = (tmp_path / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF  # In the second of three pages.
    segment.write_bytes(data)
    with running_server(tmp_path) as server, httpx.Client(base_url=server.http) as http:
        results = fetch(http, *[entry("t", 10, partition_value=key) for key in (2, 1, 0)])
        assert [result.get("code") for result in results] == [None, "STORAGE_CORRUPT", None]
        for result, key in ((results[0], 2), (results[2], 0)):
            assert result["messages"] == rows(key)[10:]
