"""A server that is killed and started again under hundreds of producers."""

from collections import defaultdict
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from held_address import held_address

from wings_client import Client, Committed, Producer, Retry, connect
from wings_server.testing import ServerProcess, server_process

CLIENTS = 8
"""Connections that the producers share."""
ROUNDS = 6
"""Batches of each producer."""
KILLED_IN = (2, 4)
"""Rounds in whose midst the server is killed."""
SECONDS_MAX = 60.0

SCHEMA = pa.schema([("producer", pa.int32()), ("number", pa.int64())])

Row = tuple[int, int]


def rows_of(producer: int, number: int) -> list[Row]:
    """Return the rows of a batch: one to three, numbered on from the last."""
    return [(producer, 3 * number + row) for row in range(1 + (producer + number) % 3)]


def send(producer: Producer, index: int, number: int) -> "Future[Committed]":
    rows = rows_of(index, number)
    columns = {"producer": [row[0] for row in rows], "number": [row[1] for row in rows]}
    return producer.send(columns)


def stored(client: Client) -> list[Row]:
    """Return all rows, by offset."""
    rows = client.scan("numbers").read_all()
    columns: list[list[Any]] = [rows["producer"].to_pylist(), rows["number"].to_pylist()]
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_what_many_producers_pushed_is_there_once_and_in_order_after_kills(
    tmp_path: Path, count: int
) -> None:
    with ExitStack() as stack:
        port = ("--flight", stack.enter_context(held_address()))
        server = stack.enter_context(server_process(tmp_path, flags=port))
        address = server.flight

        def start_again(killed: ServerProcess) -> ServerProcess:
            killed.kill()
            return stack.enter_context(server_process(tmp_path, flags=port))

        patient = Retry(delay_max=0.2, reconnect_seconds=SECONDS_MAX)
        clients = [stack.enter_context(connect(address, retry=patient)) for _ in range(CLIENTS)]
        clients[0].create_topic("numbers", SCHEMA)
        producers = [
            stack.enter_context(clients[index % CLIENTS].producer("numbers"))
            for index in range(count)
        ]
        futures: dict[tuple[int, int], Future[Committed]] = {}
        for number in range(ROUNDS):
            for index, producer in enumerate(producers):
                if number in KILLED_IN and index == count // 2:
                    assert wait(futures.values(), SECONDS_MAX, FIRST_COMPLETED).done
                    server = start_again(server)
                futures[index, number] = send(producer, index, number)
        committed = {key: future.result(SECONDS_MAX) for key, future in futures.items()}
        log = stored(clients[0])
    by_producer: dict[int, list[Row]] = defaultdict(list)
    for row in log:
        by_producer[row[0]].append(row)
    for index in range(count):
        sent = [row for number in range(ROUNDS) for row in rows_of(index, number)]
        assert by_producer[index] == sent
    for (index, number), result in committed.items():
        (part,) = result.committed
        assert log[part.start_offset : part.end_offset + 1] == rows_of(index, number)
