"""Damage to the files of a server: the log goes on, the rest says so, and the check finds it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from fix_commands import Command
from flight_calls import act, code_of, create_topic, get, numbers, push
from share_calls import Member, ShareStreamCall, create_group, offsets_of

from wings_core.check import check_directory
from wings_server.testing import running_server


def test_damaged_holds_close_the_share_groups_and_leave_the_log(
    tmp_path: Path, command: Command
) -> None:
    with running_server(tmp_path) as server, flight.connect(server.flight) as client:
        create_topic(client, "t", ["n: int64"])
        push(client, "t", numbers(*range(10)))
        create_group(client, "t", lock_duration_ms=1_000, delivery_limit=100)
        member = Member(client, "t")
        (leased,) = member.acquire(max_messages=10)
        while member.acknowledge(leased.ack("accept", 0, 4), leased.ack("release", 5, 9)) != [
            None,
            None,
        ]:  # Its lock, which is short, has expired.
            (leased,) = member.acquire(max_messages=10, timeout_ms=20_000)
    holds = tmp_path / "holds.sqlite"
    # Its first page is whole, and so is one table or another.
    size = holds.stat().st_size
    holds.write_bytes(holds.read_bytes()[: size - 4096] + bytes(4096))

    with running_server(tmp_path) as server, flight.connect(server.flight) as client:
        push(client, "t", numbers(10))
        assert get(client, topic="t", offset=0, max_messages=11).column("n") == list(range(11))
        member = Member(client, "t")
        calls: list[Callable[[], Any]] = [
            member.acquire,
            member.describe,
            lambda: create_group(client, "t", group="another"),
        ]
        for call in calls:
            with pytest.raises(pa.ArrowException) as caught:
                call()
            assert code_of(caught.value) == "STORAGE_CORRUPT"
            assert "wings holds rebuild" in str(caught.value)
        assert member.acknowledge(leased.ack("accept", 5, 9)) == ["STORAGE_CORRUPT"]
        assert ShareStreamCall(client, "t").ended()["end"] == "STORAGE_CORRUPT"
        body = {"group": "billing", "topic": "t", "member": "one"}
        acquired = httpx.post(f"{server.http}/v1/share/acquire", json=body)
        assert (acquired.status_code, acquired.json()["code"]) == (500, "STORAGE_CORRUPT")
        ready = httpx.get(f"{server.http}/readyz")
        assert ready.status_code == 200
        assert "share groups are closed" in ready.json()["share_groups"]

    status, out, err = command("check", tmp_path)
    assert status == 1
    assert "holds.sqlite" in out + err
    status, out, err = command("holds", "rebuild", tmp_path)
    assert status == 0
    assert "the damaged file is kept as" in out + err
    assert command("check", tmp_path)[0] == 0
    status, out, err = command("holds", "rebuild", tmp_path)
    assert status == 1
    assert "is sound" in out + err

    with running_server(tmp_path) as server, flight.connect(server.flight) as client:
        assert httpx.get(f"{server.http}/readyz").json() == {"status": "ok"}
        found = offsets_of(Member(client, "t").acquire(max_messages=11, timeout_ms=20_000))
        assert set(range(5, 11)) <= set(found), "what was not finished is delivered"


def test_merged_files_that_are_cut_off_are_found(tmp_path: Path, command: Command) -> None:
    with running_server(tmp_path) as server, flight.connect(server.flight) as client:
        create_topic(client, "t", ["n: int64"])
        push(client, "t", *(numbers(number) for number in range(20)))
        act(client, "alter-topic", topic="t", config={"tier_after_ms": 0})
        act(client, "maintain")
    (merged,) = tmp_path.rglob("*.feather")
    data = merged.read_bytes()
    assert check_directory(tmp_path).ok
    for length in range(1, len(data), 97):
        merged.write_bytes(data[:length])
        assert not check_directory(tmp_path).ok, length
    merged.write_bytes(data[:-1])
    status, out, err = command("check", tmp_path)
    assert (status, "is cut off" in out + err) == (1, True)
