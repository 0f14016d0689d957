"""Who may do what, over Flight and HTTP: each action and each call, allowed and refused."""

import json
import re
from collections.abc import Callable, Generator
from itertools import count
from pathlib import Path
from typing import Any, cast

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import Json, act, create_topic, get, ticket_of
from share_calls import ShareStreamCall
from token_calls import ROOT, bearer, client_of, names_of, new_token

from wings_server.actions import ACTIONS
from wings_server.rights import ACTION_RULES, CALL_RIGHTS
from wings_server.testing import RunningServer, running_server

DEFAULT = "tenants/default/namespaces/default"
OTHER = "tenants/other/namespaces/theirs"
MINE = f"{DEFAULT}/topics/mine"
FIELDS = {"fields": [{"name": "n", "type": "int64"}]}

_numbers = count()

DATA = "read write share"

BODIES: dict[str, tuple[str, Json]] = {
    "create-topic": ("admin", {"topic": MINE, "schema": FIELDS, "if_not_exists": True}),
    "describe-topic": (DATA, {"topic": MINE}),
    "alter-topic": ("admin", {"topic": MINE, "config": {}}),
    "delete-topic": ("admin", {"topic": MINE}),
    "create-namespace": ("admin", {"namespace": DEFAULT}),
    "delete-namespace": ("admin", {"namespace": DEFAULT}),
    "partition-states": ("read", {"topic": MINE}),
    "offset-for-timestamp": ("read", {"topic": MINE, "timestamp": "2026-01-01T00:00:00Z"}),
    "commit-offsets": ("read", {"consumer": "c", "offsets": [{"topic": MINE, "offset": 0}]}),
    "get-offsets": ("read", {"consumer": "c", "topic": MINE}),
    "delete-offsets": ("read", {"consumer": "c", "topic": MINE}),
    "group-heartbeat": (
        "read",
        {"consumer": "members", "member": "m", "member_epoch": 0, "topics": [MINE]},
    ),
    "group-reset": ("read", {"consumer": "c", "topic": MINE, "to": "latest"}),
    "tier-states": ("read", {"topic": MINE}),
    "consumer-lag": ("read", {"consumer": "c", "topic": MINE}),
    "history": ("read", {"topic": MINE}),
    "stage-publish": ("write", {"writer": MINE, "batch": 0, "stages": []}),
    "transaction-begin": ("write", {"writer": f"begins {MINE}"}),
    "stage-abort": ("write", {"writer": MINE, "stages": []}),
    "shard-open": ("write", {"source": MINE, "token": "t", "shards": ["s"]}),
    "shard-acquire": ("write", {"source": MINE, "token": "t", "claims": [], "stale_seconds": 9}),
    "shard-reset": ("write", {"source": MINE, "shards": []}),
    "shard-get": ("write", {"source": MINE, "shards": []}),
    "shard-list": ("write", {"source": MINE}),
    "shard-count": ("write", {"source": MINE}),
    "shard-prune": ("write", {"source": MINE, "age_seconds": 9, "interval_seconds": 9}),
    "share-create": ("admin", {"group": "g", "topic": MINE, "if_not_exists": True}),
    "share-alter": ("admin", {"group": "g", "topic": MINE, "config": {}}),
    "share-seek": ("admin", {"group": "g", "topic": MINE, "to": "earliest"}),
    "share-purge": ("admin", {"group": "g", "topic": MINE}),
    "share-describe": ("share", {"group": "g", "topic": MINE}),
    "share-members": ("share", {"group": "g", "topic": MINE}),
    "share-delete": ("admin", {"group": "g", "topic": MINE}),
    "share-list": ("share", {"topic": MINE}),
    "share-acknowledge": ("share", {"group": "g", "topic": MINE, "member": "m", "acks": []}),
    "share-redrive": ("admin", {"dlq_topic": MINE}),
    "maintain": ("admin", {"topic": MINE}),
}
"""By action: the rights of which any will do on the topic, or its namespace, and a body."""

OPERATORS: dict[str, Json] = {
    "token-create": {"name": "never", "grants": ["read=*"]},
    "token-alter": {"name": "nobody", "quotas": {}},
    "token-list": {},
    "token-revoke": {"name": "nobody"},
    "list-nodes": {},
    "node-states": {},
    "backup-begin": {},
    "backup-end": {"backup": "0" * 32},
}
"""The actions that only `admin` on `*` may do."""

LISTS = {"list-topics", "list-namespaces", "health"}
"""Refused to no one: they show what may be seen."""

SUMS: dict[str, tuple[str, Json]] = {
    "topic-totals": ("read", {"topics": [MINE]}),
    "traffic": ("read", {}),
    "list-consumers": ("read", {}),
    "group-list": ("read", {}),
    "group-describe": ("read", {"consumer": "grouped"}),
    "shard-sources": ("write", {}),
}
"""By action: a right that is needed on anything, and a body; they show what the right is on."""

PARSED: dict[str, Json] = {"sql-live": {"sql": "from t"}}
"""Need the right to read anything: they look nothing up."""

RIGHTS = ("read", "write", "share", "admin", "metrics")


@pytest.fixture(scope="module")
def server() -> Generator[RunningServer]:
    with running_server(root_token=ROOT) as running:
        root = client_of(running.flight, ROOT)
        act(root, "create-namespace", namespace=OTHER)
        create_topic(root, f"{OTHER}/topics/hidden", ["n: int64"])
        yield running
        root.close()


@pytest.fixture
def root(server: RunningServer) -> Generator[flight.FlightClient]:
    with client_of(server.flight, ROOT) as client:
        if MINE not in names_of(act(client, "list-topics"), "topic"):
            create_topic(client, MINE, ["n: int64"])
        act(client, "share-create", group="g", topic=MINE, if_not_exists=True)
        yield client


Granted = Callable[..., tuple[flight.FlightClient, str]]


@pytest.fixture
def granted(server: RunningServer, root: flight.FlightClient) -> Generator[Granted]:
    """Returns a client with a new token of some grants, and the token."""
    opened: list[flight.FlightClient] = []

    def grant(*grants: str, **keys: Any) -> tuple[flight.FlightClient, str]:
        token = new_token(root, f"token-{next(_numbers)}", *grants, **keys)
        opened.append(client_of(server.flight, token))
        return opened[-1], token

    yield grant
    for client in opened:
        client.close()


def code_of(call: Callable[[], object]) -> str | None:
    """Return the code that a Flight call fails with, None where it succeeds."""
    try:
        call()
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        return refusal_of(error)["code"]
    return None


def refusal_of(error: Exception) -> Json:
    """Return the JSON of a Flight error."""
    if isinstance(error, flight.FlightError):
        return json.loads(error.extra_info)
    # pyarrow passes on no Flight error of `get_schema`, neither as a server nor as a client.
    code = "PERMISSION_DENIED" if "has no right" in str(error) else "UNAUTHENTICATED"
    return {"code": code, "message": str(error)}


def act_code(client: flight.FlightClient, action: str, body: Json) -> str | None:
    """Return the code that an action fails with, None where it succeeds."""
    return code_of(lambda: act(client, action, **body))


def push(client: flight.FlightClient, topic: str) -> None:
    schema = pa.schema([("n", pa.int64())])
    descriptor = flight.FlightDescriptor.for_path(topic)
    writer, reader = cast("Any", client).do_put(descriptor, schema)
    with writer:
        writer.write_batch(pa.record_batch({"n": [1]}, schema=schema))
        writer.done_writing()
        reader.read()


CALLS: dict[str, tuple[str, Callable[[flight.FlightClient, str], object]]] = {
    "fetch": ("read", lambda client, topic: get(client, topic=topic, offset=0, timeout_ms=2)),
    "scan": ("read", lambda client, topic: get(client, kind="scan", topic=topic)),
    "follow": ("read", lambda client, topic: get(client, kind="follow", topic=topic, timeout_ms=2)),
    "acquire": (
        "share",
        lambda client, topic: client.do_get(
            ticket_of(kind="acquire", topic=topic, group="g", member="m", timeout_ms=2)
        ).read_all(),
    ),
    "push": ("write", push),
    "flight-info": (
        "read",
        lambda client, topic: client.get_flight_info(flight.FlightDescriptor.for_path(topic)),
    ),
    "schema": (
        DATA,
        lambda client, topic: client.get_schema(flight.FlightDescriptor.for_path(topic)),
    ),
}


def test_every_action_has_a_rule_and_every_rule_an_action() -> None:
    assert ACTIONS.keys() <= ACTION_RULES.keys(), "a new action needs a right in `ACTION_RULES`"
    assert (
        ACTIONS.keys() == BODIES.keys() | OPERATORS.keys() | LISTS | SUMS.keys() | PARSED.keys()
    ), "and an entry here"


@pytest.mark.parametrize("action", BODIES)
def test_an_action_needs_its_right_on_its_topic(
    granted: Granted, root: flight.FlightClient, action: str
) -> None:
    rights, body = BODIES[action]
    for right in RIGHTS:
        client, _ = granted(f"{right}={DEFAULT}*")
        code = act_code(client, action, body)
        assert (code == "PERMISSION_DENIED") == (right not in rights.split()), (right, code)
    stranger, _ = granted(*(f"{right}={OTHER}*" for right in RIGHTS))
    assert act_code(stranger, action, body) == "PERMISSION_DENIED"
    del root


@pytest.mark.parametrize("action", SUMS)
def test_a_sum_shows_what_its_right_is_on(
    granted: Granted, root: flight.FlightClient, action: str
) -> None:
    push(root, MINE)
    act(root, "commit-offsets", consumer="c", offsets=[{"topic": MINE, "offset": 0}])
    act(root, "shard-open", source=MINE, token="t", shards=["s"])
    joins = {"consumer": "grouped", "member": action, "member_epoch": 0, "topics": [MINE]}
    act(root, "group-heartbeat", **joins)
    needed, body = SUMS[action]
    for right in RIGHTS:
        client, _ = granted(f"{right}={MINE}")
        code = act_code(client, action, body)
        assert (code == "PERMISSION_DENIED") == (right != needed), (right, code)
    allowed, _ = granted(f"{needed}={MINE}")
    assert MINE in json.dumps(act(allowed, action, **body))
    stranger, _ = granted(f"{needed}={OTHER}*")
    assert MINE not in answer_to(stranger, action, body)


def test_health_shows_what_the_token_may_read(
    granted: Granted, root: flight.FlightClient, server: RunningServer
) -> None:
    dead = f"{DEFAULT}/topics/dead"
    config = {"start": "earliest", "dlq_topic": dead}
    create_topic(root, "dying", ["n: int64"])
    act(root, "share-create", group="d", topic="dying", config=config)
    push(root, "dying")
    acquire = {"group": "d", "topic": "dying", "member": "m"}
    held = httpx.post(f"{server.http}/v1/share/acquire", headers=bearer(ROOT), json=acquire).json()
    lease = held["deliveries"][0]["lease"]
    ack = {"partition": None, "first": 0, "last": 0, "lease": lease, "type": "reject"}
    act(root, "share-acknowledge", group="d", topic="dying", member="m", acks=[ack])
    dying = f"{DEFAULT}/topics/dying"
    for grants, shown in (
        ([f"read={dead}", f"share={dying}"], ["1 dead letter of d of dying in dead"]),
        ([f"read={dead}"], ["1 dead letter in dead"]),
        ([f"share={dying}", f"read={dying}"], []),
        (["metrics"], []),
    ):
        client, token = granted(*grants)
        found = act(client, "health")
        assert [each["message"].partition(",")[0] for each in found["needs"]] == shown
        assert found["principal"]["grants"] == [
            each.replace("metrics", "metrics=*") for each in grants
        ]
        assert (found["nodes"], found["disk"]) == (None, None)
        answer = httpx.get(f"{server.http}/v1/health", headers=bearer(token))
        assert answer.json()["principal"] == found["principal"]
    assert act(root, "health")["disk"]["free_bytes"] > 0
    assert httpx.get(f"{server.http}/v1/health").status_code == 401


@pytest.mark.parametrize("action", PARSED)
def test_who_may_read_nothing_has_nothing_parsed(granted: Granted, action: str) -> None:
    for right in RIGHTS:
        client, _ = granted(f"{right}={OTHER}*")
        code = act_code(client, action, PARSED[action])
        assert (code == "PERMISSION_DENIED") == (right != "read"), (right, code)


@pytest.mark.parametrize("action", OPERATORS)
def test_some_actions_are_for_operators(granted: Granted, action: str) -> None:
    client, _ = granted(*(f"{right}=tenants/*" for right in RIGHTS), "read=*", "write=*")
    assert act_code(client, action, OPERATORS[action]) == "PERMISSION_DENIED"
    operator, _ = granted("admin=*")
    assert act_code(operator, action, OPERATORS[action]) in {
        None,
        "TOKEN_NOT_FOUND",
    }
    if action == "token-create":
        act(operator, "token-revoke", name="never")


def test_maintenance_of_all_topics_is_for_operators(granted: Granted) -> None:
    client, _ = granted("admin=tenants/*")
    assert code_of(lambda: act(client, "maintain")) == "PERMISSION_DENIED"


@pytest.mark.parametrize("call", CALLS)
def test_a_call_needs_its_right_on_its_topic(granted: Granted, call: str) -> None:
    rights, make = CALLS[call]
    for right in RIGHTS:
        client, _ = granted(f"{right}={MINE}")
        code = code_of(lambda client=client: make(client, "mine"))
        assert (code == "PERMISSION_DENIED") == (right not in rights.split()), (right, code)


@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_does_not_tell_whether_the_topic_exists(granted: Granted, call: str) -> None:
    client, _ = granted(f"read={MINE}", f"share={MINE}", f"write={MINE}")
    told: list[Json] = []
    for topic in ("hidden", "nowhere"):
        with pytest.raises((flight.FlightUnauthorizedError, pa.ArrowException)) as refusal:
            CALLS[call][1](client, f"{OTHER}/topics/{topic}")
        told.append(json.loads(json.dumps(refusal_of(refusal.value)).replace(topic, "X")))
    assert told[0] == told[1]
    assert told[0]["code"] == "PERMISSION_DENIED"


def test_actions_do_not_tell_whether_something_exists(granted: Granted) -> None:
    client, _ = granted(f"read={MINE}")
    for action, key, names in (
        ("describe-topic", "topic", [f"{OTHER}/topics/hidden", f"{OTHER}/topics/nowhere"]),
        ("delete-namespace", "namespace", [OTHER, f"{OTHER}2"]),
    ):
        for name in names:
            body = {key: name}
            assert act_code(client, action, body) == "PERMISSION_DENIED"
    for namespace in (OTHER, f"{OTHER}2"):
        assert act(client, "list-topics", namespace=namespace) == []
        criteria = json.dumps({"namespace": namespace}).encode()
        assert list(cast("Any", client).list_flights(criteria)) == []


def test_a_missing_topic_suggests_only_names_that_the_caller_may_see(
    granted: Granted, server: RunningServer, root: flight.FlightClient
) -> None:
    asked = f"{DEFAULT}/topics/mines"
    create_topic(root, f"{DEFAULT}/topics/mint", ["n: int64"])
    client, token = granted(f"read={MINE}", f"read={asked}", f"write={asked}")
    push = {"namespace": DEFAULT, "batches": [{"topic": "mines", "data": []}]}
    fetch = {"namespace": DEFAULT, "topics": [{"topic": "mines", "offset": 0}]}
    try:
        for caller, secret, similar in ((client, token, ["mine"]), (root, ROOT, ["mine", "mint"])):
            hint = f"; did you mean {' or '.join(map(repr, similar))}?"
            for ticket in (
                ticket_of(kind="fetch", topic=asked, offset=0),
                ticket_of(kind="sql", sql="select * from mines"),
            ):
                with pytest.raises(flight.FlightError) as refused:
                    caller.do_get(ticket).read_all()
                told = refusal_of(refused.value)
                assert told["similar"] == similar
                assert told["message"] == f"there is no topic {asked}{hint}"
            with httpx.Client(base_url=server.http, headers=bearer(secret)) as http:
                (batch,) = http.post("/v1/push", json=push).json()["batches"]
                answers = (batch, http.post("/v1/fetch", json=fetch).json())
            assert all(each["message"].endswith(hint) for each in answers)
    finally:
        act(root, "delete-topic", topic=f"{DEFAULT}/topics/mint")


def test_lists_show_what_may_be_seen(
    granted: Granted, root: flight.FlightClient, server: RunningServer
) -> None:
    create_topic(root, "orders-1", ["n: int64"])
    act(root, "share-create", group="h", topic="orders-1")
    act(root, "commit-offsets", consumer="all", offsets=[
        {"topic": "orders-1", "offset": 0}, {"topic": f"{OTHER}/topics/hidden", "offset": 0},
    ])  # fmt: skip
    orders = f"{DEFAULT}/topics/orders-1"
    sharer, token = granted("share=orders-*")
    assert names_of(act(sharer, "list-topics"), "topic") == [orders]
    assert names_of(act(sharer, "list-namespaces"), "namespace") == [DEFAULT]
    assert names_of(act(sharer, "share-list"), "topic") == [orders]
    (listed,) = sharer.list_flights()
    assert listed.descriptor.path == [orders.encode()]
    assert (listed.endpoints, listed.total_records, listed.total_bytes) == ([], -1, -1)
    with httpx.Client(base_url=server.http, headers=bearer(token)) as http:
        assert names_of(http.get(f"/v1/{DEFAULT}/topics").json(), "topic") == [orders]
        assert names_of(http.get("/v1/namespaces").json(), "namespace") == [DEFAULT]
    reader, _ = granted(f"read={orders}")
    assert [len(each.endpoints) for each in reader.list_flights()] == [1]
    assert act(reader, "share-list") == []
    assert names_of(act(reader, "get-offsets", consumer="all")["offsets"], "topic") == [orders]
    deleted = act(reader, "delete-offsets", consumer="all")["offsets"]
    assert names_of(deleted, "topic") == [orders]
    kept = act(root, "get-offsets", consumer="all")["offsets"]
    assert names_of(kept, "topic") == [f"{OTHER}/topics/hidden"]
    assert act(reader, "delete-offsets", consumer="all") == {"offsets": []}
    administrator, _ = granted(f"admin={DEFAULT}*")
    assert act(administrator, "list-topics") == []
    act(root, "delete-topic", topic="orders-1")


def test_dead_letters_need_the_right_on_their_topic_too(granted: Granted) -> None:
    client, _ = granted(f"admin={MINE}")
    for action in ("share-create", "share-alter"):
        config = {"dlq_topic": f"{OTHER}/topics/letters"}
        body = {"group": "g", "topic": "mine", "config": config}
        assert act_code(client, action, body) == "PERMISSION_DENIED"


def stage(client: flight.FlightClient, topic: str, name: str) -> None:
    """Write a stage of one row."""
    schema = pa.schema([("n", pa.int64())])
    command = {"topic": topic, "stage": name}
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    writer, reader = cast("Any", client).do_put(descriptor, schema)
    with writer:
        writer.write_batch(pa.record_batch({"n": [1]}, schema=schema))
        writer.done_writing()
        reader.read()


def answer_to(client: flight.FlightClient, action: str, body: Json) -> str:
    """Return all that an action answers, or is refused with."""
    try:
        return json.dumps(act(client, action, **body))
    except flight.FlightError as error:
        return f"{type(error)} {error} {error.extra_info}"


def test_stages_are_of_the_topics_that_they_were_written_to(
    granted: Granted, root: flight.FlightClient
) -> None:
    stage(root, f"{OTHER}/topics/hidden", "theirs-1")
    client, _ = granted(f"write={MINE}")
    stage(client, MINE, "theirs-mine")
    # Whatever is asked of it, the answer is that of a stage that is not there.
    act(client, "stage-publish", writer="mine", batch=7, stages=[])
    for action, body in (
        ("stage-publish", {"writer": "w", "batch": 0, "stages": ["theirs-1"]}),
        ("stage-publish", {"writer": "w", "batch": 0, "stages": ["theirs-mine", "theirs-1"]}),
        ("stage-publish", {"writer": "mine", "batch": 3, "stages": ["theirs-1"]}),
        ("stage-publish", {"writer": "mine", "batch": 7, "stages": ["theirs-1"]}),
        ("stage-publish", {"writer": "w", "batch": 0, "stages": ["theirs-1", "theirs-1"]}),
        ("stage-abort", {"writer": "w", "stages": ["theirs-1"]}),
        ("stage-abort", {"writer": "w", "stages": [], "prefix": "theirs-1"}),
    ):
        absent = json.loads(json.dumps(body).replace("theirs-1", "absent-1"))
        assert answer_to(client, action, body).replace("theirs-1", "absent-1") == (
            answer_to(client, action, absent)
        )
    assert act(client, "stage-abort", writer="w", stages=[], prefix="theirs")["deleted"] == (
        ["theirs-mine"]
    )
    publish = {"writer": "w", "batch": 0, "stages": ["theirs-1"]}
    assert act(root, "stage-publish", **publish)["committed"]
    # Published already: the answer would tell what the stage held.
    with pytest.raises(flight.FlightUnauthorizedError) as refused:
        act(client, "stage-publish", **publish)
    assert "hidden" not in str(refused.value)


def test_offsets_in_a_publish_need_the_right_to_read_their_topic(
    granted: Granted, root: flight.FlightClient
) -> None:
    read = {"consumer": "c", "offsets": [{"topic": MINE, "offset": 0}]}
    writes, _ = granted(f"write={MINE}")
    with pytest.raises(flight.FlightUnauthorizedError, match="read"):
        act(writes, "stage-publish", writer="copies", batch=0, stages=[], offsets=read)
    both, _ = granted(f"write={MINE}", f"read={MINE}")
    assert not act(both, "stage-publish", writer="copies", batch=0, stages=[], offsets=read)[
        "replayed"
    ]


def test_a_member_is_moved_by_nobody_who_may_not_read_its_topics(
    granted: Granted, root: flight.FlightClient
) -> None:
    other = f"{DEFAULT}/topics/readable"
    create_topic(root, other, ["n: int64"])
    theirs, _ = granted(f"read={MINE}")
    joined = act(
        theirs,
        "group-heartbeat",
        consumer="kept",
        member="m",
        member_epoch=0,
        topics=[MINE],
        instance="i",
    )
    stranger, _ = granted(f"read={other}")
    for body in (
        {"member": "m", "member_epoch": 0, "topics": [other]},
        {"member": "m", "member_epoch": joined["member_epoch"], "topics": [other]},
        {"member": "m", "member_epoch": -1, "topics": [other]},
        {"member": "n", "member_epoch": 0, "topics": [other], "instance": "i"},
    ):
        answer = {"consumer": "kept", **body}
        assert act_code(stranger, "group-heartbeat", answer) == "PERMISSION_DENIED"
    reset = {"consumer": "kept", "topic": other, "to": "earliest"}
    assert act_code(stranger, "group-reset", reset) == "GROUP_NOT_FOUND"
    epoch = joined["member_epoch"]
    assert (
        act_code(
            theirs,
            "group-heartbeat",
            {"consumer": "kept", "member": "m", "member_epoch": epoch, "instance": "i"},
        )
        is None
    )


def test_a_share_stream_without_the_right_ends_in_band(granted: Granted) -> None:
    for right in RIGHTS:
        client, _ = granted(f"{right}={MINE}")
        stream = ShareStreamCall(client, "mine", group="g")
        if right == "share":
            stream.close()
            continue
        assert stream.ended()["end"] == "PERMISSION_DENIED"
    for topic in ("hidden", "nowhere"):
        client, _ = granted(f"share={MINE}")
        assert ShareStreamCall(client, f"{OTHER}/topics/{topic}").ended()["end"] == (
            "PERMISSION_DENIED"
        )


def test_http_requests_need_the_rights_of_their_calls(
    granted: Granted, server: RunningServer
) -> None:
    fetch = {"namespace": DEFAULT, "topics": [{"topic": "mine", "offset": 0}], "timeout_ms": 2}
    pushed = {"namespace": DEFAULT, "batches": [{"topic": "mine", "data": [{"n": 1}]}]}
    acquire = {"topic": "mine", "group": "g", "member": "m", "timeout_ms": 2}
    for right in RIGHTS:
        _, token = granted(f"{right}=*" if right == "metrics" else f"{right}={MINE}")
        with httpx.Client(base_url=server.http, headers=bearer(token)) as http:
            answers = {
                "read": http.post("/v1/fetch", json=fetch).status_code,
                "share": http.post("/v1/share/acquire", json=acquire).status_code,
                "metrics": http.get("/metrics").status_code,
            }
            assert answers == {each: 200 if each == right else 403 for each in answers}
            (batch,) = http.post("/v1/push", json=pushed).json()["batches"]
            assert batch.get("code") == (None if right == "write" else "PERMISSION_DENIED")
            refused = http.get("/v1/namespaces/x/y")
            assert refused.status_code == 404


def test_only_health_is_open(server: RunningServer) -> None:
    with httpx.Client(base_url=server.http) as http:
        paths: Json = httpx.get(f"{server.http}/openapi.json", headers=bearer(ROOT)).json()["paths"]
        for path, methods in paths.items():
            for method in methods:
                answer = http.request(method, path)
                if path in {"/healthz", "/readyz"}:
                    assert answer.status_code == 200
                    continue
                assert answer.status_code == 401, path
                assert answer.json()["code"] == "UNAUTHENTICATED"
                assert answer.headers["www-authenticate"] == "Bearer"
        assert http.get("/openapi.json").status_code == 401
        for header in ("Bearer", "Bearer x", "Basic !", "Token x", f"Basic {ROOT}", ROOT):
            answer = http.get("/v1/namespaces", headers={"authorization": header})
            assert answer.status_code == 401


@pytest.mark.parametrize("token", [None, "wings_bad", ""])
def test_no_flight_call_is_open(server: RunningServer, token: str | None) -> None:
    with client_of(server.flight, token) as client:
        calls: list[Callable[[], object]] = [
            *(lambda make=make: make(client, MINE) for _, make in CALLS.values()),
            *(lambda action=action: act(client, action) for action in ACTIONS),
            lambda: list(client.list_flights()),
            lambda: list(client.list_actions()),
            lambda: act(client, "no-such-action"),
        ]
        for call in calls:
            assert code_of(call) == "UNAUTHENTICATED"


def test_a_basic_handshake_answers_with_the_bearer_header(
    server: RunningServer, granted: Granted
) -> None:
    _, token = granted("read=mine")
    with flight.FlightClient(server.flight) as client:
        pair = client.authenticate_basic_token("anyone", token)
        assert pair == (b"authorization", f"Bearer {token}".encode())
        options = flight.FlightCallOptions(headers=[pair])
        assert list(cast("Any", client).list_flights(b"", options))
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.authenticate_basic_token("anyone", "wings_bad")


def test_a_log_without_tokens_takes_any_caller() -> None:
    with running_server() as server:
        for token in (None, "wings_unknown"):
            with client_of(server.flight, token) as client:
                assert act(client, "list-topics") == []
            assert httpx.get(f"{server.http}/metrics", headers=bearer(token)).status_code == 200
        for password in ("wings_unknown", "a\nb", "\x00", "é"):
            with flight.FlightClient(server.flight) as client:
                _, answered = client.authenticate_basic_token("anyone", password)
                assert (answered == b"Bearer wings_unknown") == password.startswith("wings")
        with client_of(server.flight, None) as client:
            first = new_token(client, "first", "admin=*")
            with pytest.raises(flight.FlightUnauthenticatedError):
                act(client, "list-topics")
        with client_of(server.flight, first) as client:
            assert names_of(act(client, "token-list"), "name") == ["first"]
            act(client, "token-revoke", name="first")
            with pytest.raises(flight.FlightUnauthenticatedError):
                act(client, "list-topics")


def test_what_tokens_answer(granted: Granted, root: flight.FlightClient) -> None:
    created = act(root, "token-create", name="t", grants=["read=mine", "metrics"], expires="90d")
    assert created.keys() == {"name", "grants", "created_at", "expires_at", "quotas", "token"}
    assert created["grants"] == [f"read={MINE}", "metrics=*"]
    (listed,) = (each for each in act(root, "token-list") if each["name"] == "t")
    assert listed == {key: value for key, value in created.items() if key != "token"}
    assert code_of(lambda: act(root, "token-create", name="t", grants=["read=*"])) == (
        "ALREADY_EXISTS"
    )
    assert act(root, "token-revoke", name="t") == listed
    assert code_of(lambda: act(root, "token-revoke", name="t")) == "TOKEN_NOT_FOUND"
    for body in (
        {"name": "u", "grants": []},
        {"name": "u", "grants": ["own=*"]},
        {"name": "u", "grants": ["read=*"], "expires": "soon"},
        {"name": "not a name", "grants": ["read=*"]},
    ):
        assert act_code(root, "token-create", body) == "INVALID_ARGUMENT"
    del granted


def test_the_table_of_rights_in_the_documentation_is_that_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    shown: dict[str, set[str]] = {}
    for line in page.partition("| you call | on the wire |")[2].splitlines()[2:]:
        if not line.startswith("|"):
            break
        _, _, calls, rights, _, _ = line.split("|")
        for call in re.findall(r"`(.+?)`", calls):
            assert call not in shown
            shown[call] = {*re.findall(r"`(.+?)`", rights)}
    rules = {name: rule.rights for name, rule in ACTION_RULES.items()} | dict(CALL_RIGHTS)
    assert shown == {name: {right.value for right in rights} for name, rights in rules.items()}
