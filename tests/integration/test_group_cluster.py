"""A consumer group of nodes over PostgreSQL, by TLS and with tokens, one of which is killed."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest
from fix_postgres import PostgresServer
from token_calls import ROOT, client_of, new_token
from waiting import until

import wings_client
from wings_client import Client, Retry
from wings_core.errors import GroupNotFound
from wings_server import certificates
from wings_server.testing import ServerProcess, node_process

KEYS = 20
PATIENT = Retry(attempts=200, delay_max=0.2, reconnect_seconds=60.0)
SECONDS = 90.0


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    certificates.make_certificates(tmp_path / "certs", ["localhost", "127.0.0.1"])
    return tmp_path / "certs"


@pytest.mark.timeout(240)
def test_members_read_each_row_once_though_the_node_that_runs_their_group_is_killed(
    earnest_postgres: PostgresServer, tmp_path: Path, certs: Path
) -> None:
    url, objects = earnest_postgres.new_database(), (tmp_path / "objects").as_uri()
    flags = ["--tls-cert", f"{certs}/server.pem", "--tls-key", f"{certs}/server-key.pem"]
    flags += ["--cluster-ca", f"{certs}/ca.pem"]
    seen: Counter[tuple[int, int]] = Counter()
    done = Event()

    def read(client: Client) -> None:
        with client.consumer("group", "topic", group=True, session=6, timeout=0.5) as consumer:
            while not done.is_set():
                for taken in consumer:
                    for row in taken.batch.to_pylist():
                        seen[row["key"], row["n"]] += 1

    with ExitStack() as stack:
        nodes: list[ServerProcess] = [
            stack.enter_context(
                node_process(url, objects, flags=flags, environment={"WINGS_ROOT_TOKEN": ROOT})
            )
            for _ in range(2)
        ]

        def client_at(address: str, token: str) -> Client:
            return stack.enter_context(
                wings_client.connect(
                    address, token=token, tls_ca=certs / "ca.pem", retry=PATIENT, discover=False
                )
            )

        roots = [client_at(node.flight, ROOT) for node in nodes]
        authority = (certs / "ca.pem").read_bytes()
        operator = stack.enter_context(client_of(nodes[0].flight, ROOT, tls_root_certs=authority))
        token = new_token(operator, "team", "read=topic", "write=topic")
        stranger = client_at(nodes[1].flight, new_token(operator, "other", "read=else"))
        roots[0].create_topic("topic", {"key": "int64", "n": "int64"}, "key")
        with pytest.raises(GroupNotFound):
            roots[0].consumer_group("group")  # From now on its node runs the group.

        def push(number: int) -> None:
            rows = {"key": list(range(KEYS)), "n": [number] * KEYS}
            roots[1].push("topic", rows)

        push(0)
        members = [client_at(nodes[1].flight, token) for _ in range(2)]
        threads = [Thread(target=read, args=(client,)) for client in members]
        for thread in threads:
            thread.start()
        until(lambda: len(seen) == KEYS, SECONDS)
        # Passed on, as the heartbeats are.
        until(lambda: len(roots[1].consumer_group("group").members) == 2, SECONDS)
        with pytest.raises(GroupNotFound):
            stranger.consumer_group("group")
        nodes[0].kill()
        push(1)
        until(lambda: len(seen) == KEYS * 2, SECONDS)
        # The other node runs the group once the lease of the one that was killed has ended.
        until(lambda: len(roots[1].consumer_group("group").members) == 2, SECONDS)
        push(2)
        until(lambda: len(seen) == KEYS * 3, SECONDS)
        done.set()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        assert set(seen.values()) == {1}
        assert roots[1].consumer_group("group").lag == 0
