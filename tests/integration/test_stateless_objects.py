"""Nodes without a data directory whose object store is away for a while, or damaged."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pyarrow.flight as flight
import pytest
from faulty_store import faulty_store
from fix_postgres import PASSWORD
from flight_calls import code_of, create_topic, get, numbers, push
from stateless_nodes import Nodes
from waiting import until

from wings_core.limits import Limits

SECONDS_MAX = 60.0


def refusal(client: flight.FlightClient, number: int) -> str | None:
    """Push a row; return the code of its refusal."""
    try:
        push(client, "events", numbers(number))
    except flight.FlightUnavailableError as error:
        return code_of(error)
    return None


def values(client: flight.FlightClient) -> list[int]:
    return get(client, kind="scan", topic="events").column("n")


def test_while_the_object_store_is_away_small_pushes_go_on_to_a_bound_on_all_nodes(
    nodes: Nodes, s3_url: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(
        inline_bytes_max=20_000,
        object_flush_seconds=0.01,
        object_retry_seconds_max=0.3,  # Where it is away, it says so at once.
    )
    with faulty_store(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        clients = [nodes.start(hot=s3_url, limits=limits).client() for _ in range(2)]
        create_topic(clients[0], "events", ["n: int64"])
        proxy.down = True  # Before a drain moves anything into it.
        push(clients[1], "events", numbers(-1))
        acknowledged = [-1]
        refused: set[int] = set()
        end = time.monotonic() + SECONDS_MAX
        number = 0
        # Until a drain has failed, what finds no room is tried at the store, which is away.
        while len(refused) < len(clients):
            assert time.monotonic() < end
            for place, client in enumerate(clients):
                code = refusal(client, number)
                assert code in {None, "UNAVAILABLE", "RESOURCE_EXHAUSTED"}
                if code is None:
                    acknowledged.append(number)
                if code == "RESOURCE_EXHAUSTED":
                    refused.add(place)
                number += 1
        assert len(acknowledged) > 5
        assert [values(client) for client in clients] == [acknowledged, acknowledged]
        proxy.down = False
        for client in clients:
            until(lambda client=client, last=number: refusal(client, last) is None)
            acknowledged.append(number)
            number += 1

        def is_drained() -> bool:
            with psycopg.connect(nodes.url) as connection:
                rows = connection.execute("SELECT count(*) FROM wings.inline_folios").fetchone()
            return rows == (0,)

        until(is_drained)
        third = nodes.start(hot=s3_url, limits=limits).client()
        assert [values(client) for client in (*clients, third)] == [acknowledged] * 3


def check(nodes: Nodes, *flags: str) -> tuple[int, str, str]:
    """Run `wings check`; return its exit status and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "wings_client.cli", "check", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "WINGS_METADATA_URL": nodes.url},
    )
    assert PASSWORD not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def test_the_log_of_nodes_is_checked_as_a_directory_is(nodes: Nodes, tmp_path: Path) -> None:
    assert check(nodes)[0] == 2, "there is no metadata"
    objects = tmp_path / "objects"
    node = nodes.start()
    client = node.client()
    create_topic(client, "events", ["n: int64"])
    for number in range(3):
        push(client, "events", numbers(number))
        node.server.log.maintainer.run()  # An object of its own.
    push(client, "events", numbers(3))  # It may be in PostgreSQL still.
    status, report, _ = check(nodes)
    assert (status, report.splitlines()[-1]) == (0, "all right")
    assert "1 topic, 1 partition, 4 pages, 4 rows" in report
    assert check(nodes, "--hot", objects.as_uri())[0] == 0
    status, _, error = check(nodes, "--hot", (tmp_path / "elsewhere").as_uri())
    assert status == 2
    assert "have their new messages at" in error
    damaged, missing = sorted(objects.rglob("*.folio"))[:2]
    content = bytearray(damaged.read_bytes())
    content[-9] ^= 1
    damaged.write_bytes(content)
    missing.unlink()
    status, report, _ = check(nodes)
    assert status == 1
    assert report.splitlines()[-1] == "2 problems found"
    assert all(path.name in report for path in (damaged, missing))


def test_what_is_checked_is_named(nodes: Nodes, tmp_path: Path) -> None:
    status, _, error = check(nodes, str(tmp_path), "--hot", tmp_path.as_uri())
    assert (status, "a data directory knows its own" in error) == (2, True)
