"""Wrong arguments of the client's public calls are refused by the parameter's name."""

import asyncio
import inspect
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, cast

import pyarrow as pa
import pytest
from tables import each

import wings_client
from wings_client import Delivery, InvalidArgument, Retry, Topic, gather

NOWHERE = "grpc://127.0.0.1:1"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = cast("Any", pa.schema([("n", pa.int64())]))
TOPIC = Topic("tenants/default/namespaces/default/topics/t", "u", SCHEMA, None, {}, NOON)
BATCH = cast("Any", pa.record_batch({"__offset": [0]}))
DELIVERY = Delivery(BATCH, None, 0, 0, "lease", 1, 30.0)

OTHERS = [object(), b"x", [5], date(2026, 1, 1), timedelta(1)]
TEXTS = [5, 1.5, NOON, *OTHERS]
COUNTS = ["5", 1.5, True, math.nan, math.inf, NOON, *OTHERS]
NUMBERS = ["5", "", True, math.nan, -math.inf, 10**400, NOON, *OTHERS]
FINITE = [math.inf, *NUMBERS]
OUT_OF_RANGE = [
    datetime(2026, 1, 1),  # noqa: DTZ001 - it has no zone.
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))),
]
TIMES = [5, 1.5, "", "x", math.nan, *OUT_OF_RANGE, *OTHERS]
OFFSETS = [1.5, math.nan, *OUT_OF_RANGE, *OTHERS]
LISTS = ["x", 5, [object()], *OTHERS]
KEYS = ["x", [[5]], [math.nan], *OTHERS[:2], date(2026, 1, 1)]
SHARE = {"group": "g", "topic": "t"}
WORKER = SHARE | {"handler": print}

TABLE: Sequence[tuple[str, dict[str, Any], str, Sequence[Any]]] = [
    ("create_topic", {"topic": "t", "schema": {"n": int}}, "topic", TEXTS),
    ("create_topic", {"topic": "t"}, "schema", [5, "x", 1.5]),
    ("create_topic", {"topic": "t", "schema": {"n": int}}, "config", [5, "x", [1]]),
    ("alter_schema", {"topic": "t"}, "widen", [5, "x"]),
    ("topic", {}, "topic", TEXTS),
    ("topics", {}, "namespace", TEXTS),
    ("push", {"topic": TOPIC}, "data", [5, 1.5, "x"]),
    ("push", {"topic": TOPIC, "data": {"n": [1]}}, "timestamp", TIMES),
    ("push", {"topic": TOPIC, "data": {"n": [1]}}, "expected_offset", COUNTS),
    ("fetch", {"topic": "t", "offset": 0}, "timeout", FINITE),
    ("fetch", {"topic": "t", "offset": 0}, "max_messages", COUNTS),
    ("fetch", {"topic": "t"}, "offset", OFFSETS),
    ("fetch", {"topic": "t", "offset": 0}, "columns", LISTS),
    ("fetch", {"topic": "t", "offset": 0}, "filter", TEXTS),
    ("fetch", {"topic": "t"}, "partitions", KEYS),
    ("follow", {"topic": "t", "offset": 0}, "timeout", FINITE),
    ("follow", {"topic": "t"}, "offset", OFFSETS),
    ("scan", {"topic": "t"}, "columns", LISTS),
    ("scan", {"topic": "t"}, "parallel", COUNTS),
    ("sql", {}, "text", TEXTS),
    ("sql", {"text": "select 1"}, "parameters", [5, "x", 1.5]),
    ("read_ticket", {}, "ticket", [5, "x", *OTHERS]),
    ("offset_for_timestamp", {"topic": "t"}, "timestamp", TIMES),
    ("commit_offsets", {"topic": "t", "consumer": "c"}, "offsets", [5, "x", OTHERS[0]]),
    ("consumer", {"topic": "t", "name": "c"}, "start", OFFSETS),
    ("acquire_messages", SHARE, "timeout", FINITE),
    ("acquire_messages", SHARE, "max_messages", COUNTS),
    ("share_consumer", SHARE, "auto_renew", FINITE[:1] + OTHERS),
    ("worker", SHARE, "handler", [5, "x"]),
    ("worker", WORKER, "concurrency", COUNTS),
    ("producer", {"topic": TOPIC}, "linger_ms", FINITE),
    ("publish", {}, "stages", LISTS),
    ("acquire_shards", {"source": "s", "token": "t", "claims": {}}, "stale_seconds", FINITE),
    ("list_shards", {"source": "s"}, "state", [5, "x"]),
    ("gather", {"requests": [gather.Request("t")]}, "timeout", NUMBERS),
    ("gather", {}, "requests", LISTS),
    ("producer.append", {"row": {"n": 1}}, "timeout", FINITE),
    ("producer.flush", {}, "timeout", FINITE),
    ("producer.close", {}, "timeout", FINITE),
    ("share_consumer.release", {"delivery": DELIVERY}, "delay", FINITE),
    ("share_consumer.accept", {}, "delivery", [5, "x"]),
    ("worker.wait", {}, "timeout", FINITE),
]
"""A call of both clients, its other arguments, a parameter, and what it does not take."""

FUNCTIONS: Sequence[tuple[Any, dict[str, Any], str, Sequence[Any]]] = [
    (connect, {"endpoint": NOWHERE}, name, wrong)
    for connect in (wings_client.connect, wings_client.connect_async)
    for name, wrong in [
        ("endpoint", LISTS[1:]),
        ("timeout", FINITE),
        ("token", TEXTS),
        ("tls_ca", [5, 1.5]),
        ("retry", [5, "x"]),
    ]
] + [
    (Retry, {}, "attempts", COUNTS),
    (Retry, {}, "delay", FINITE),
    (gather.first, {}, "count", COUNTS),
    (gather.Request, {"topic": "t"}, "offset", OFFSETS),
]
OPENED = {
    "producer": {"topic": TOPIC},
    "share_consumer": SHARE,
    "worker": WORKER,
}
"""What has calls of its own, with the arguments to open it by."""


async def refusal(call: Any, arguments: dict[str, Any]) -> str:
    try:
        if inspect.isawaitable(found := call(**arguments)):
            await found
    except InvalidArgument as error:
        return error.message
    return "not refused"


async def named(connect: Any, name: str) -> Any:
    """Return a call of a client, or of what the client opens."""
    client = connect(NOWHERE, retry=Retry(attempts=1), timeout=1)
    if "." not in name:
        return getattr(client, name)
    opener, name = name.split(".")
    opened = getattr(client, opener)(**OPENED[opener])
    return getattr(await opened if inspect.isawaitable(opened) else opened, name)


@each("connect", [wings_client.connect, wings_client.connect_async])
def test_both_clients_refuse_wrong_arguments_by_name(connect: Any) -> None:
    async def call_all() -> None:
        for name, arguments, parameter, wrong in TABLE:
            if connect is wings_client.connect_async and name == "gather":
                continue
            call = await named(connect, name)
            for value in wrong:
                message = await refusal(call, arguments | {parameter: value})
                assert parameter in message, (name, value, message)

    asyncio.run(call_all())


@each(("function", "arguments", "parameter", "wrong"), FUNCTIONS)
def test_functions_and_classes_refuse_wrong_arguments_by_name(
    function: Any, arguments: dict[str, Any], parameter: str, wrong: Sequence[Any]
) -> None:
    for value in wrong:
        message = asyncio.run(refusal(function, arguments | {parameter: value}))
        assert parameter in message, (value, message)


@each("connect", [wings_client.connect, wings_client.connect_async])
def test_both_clients_refuse_an_unknown_option_of_a_read_by_name(connect: Any) -> None:
    async def call_all() -> None:
        for name in ("fetch", "scan", "scan_tickets", "follow", "consumer", "snapshot"):
            call = await named(connect, name)
            arguments: dict[str, Any] = {"name": "c"} if name == "consumer" else {}
            arguments |= {"offset": 0} if name == "fetch" else {}
            with pytest.raises(TypeError, match=rf"^{name}\(\).*'colums'; did you mean 'columns'"):
                await refusal(call, arguments | {"topic": TOPIC, "colums": ["n"]})

    asyncio.run(call_all())
