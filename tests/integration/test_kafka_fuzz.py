"""Frames of Kafka's protocol gone wrong: a typed answer or a closed connection, bounded memory."""

import logging
import struct
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from fuzz import mutated
from test_kafka import (
    Connection,
    Rdkafka,
    connected,
    fetch_request,
    head,
    produce_request,
    smallest_request,
)

from wings_core.limits import Limits
from wings_core.memory import own_bytes
from wings_server.kafka.messages import VERSIONS, Api
from wings_server.testing import running_server

GROWTH_BYTES_MAX = 300 << 20
LAST = 99
"""Correlation id of the last request of a connection, which is good."""


def frames(topic: str) -> list[bytes]:
    """Return good frames: all requests in all versions, and some with records."""
    found = [
        smallest_request(api, version)
        for api, (first, last) in VERSIONS.items()
        for version in range(first, last + 1)
    ]
    more = [produce_request(topic, 7, 0, 0), fetch_request(topic, wait_ms=0)]
    return found + more * (len(found) // 4)


def gone_wrong(random: Random, frame: bytes) -> bytes:
    """Return what is sent in the place of a frame, with its length."""
    match random.randrange(8):
        case 0:
            frame = random.randbytes(random.randrange(8, 2_000))
        case 1:
            frame = frame[: random.randrange(8, len(frame) + 1)]
        case 2:
            frame += frame
        case 3:  # Only its head is good.
            frame = frame[:8] + random.randbytes(random.randrange(2_000))
        case _:
            frame = mutated(random, frame)
    length = len(frame)
    if random.randrange(20) == 0:
        length = random.choice((-1, 0, length + 1, 1 << 20, 1 << 30, 2**31 - 1))
    return struct.pack(">i", length) + frame


def answers_or_ends(connection: Connection) -> None:
    """Read until the last answer, or the end of the connection, or a wait that it asked for."""
    with suppress(TimeoutError):
        while (answer := connection.receive()) is not None:
            assert len(answer) >= 4
            if struct.unpack_from(">i", answer) == (LAST,):
                return


@pytest.mark.parametrize(
    "count",
    [1_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(7_200)])],
)
def test_frames_gone_wrong_are_answered_or_close_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    random = Random(20)
    last = head(Api.API_VERSIONS, 0, LAST)
    with (
        caplog.at_level(logging.ERROR),
        running_server(tmp_path, kafka=True, limits=Limits(batch_bytes_max=1 << 20)) as server,
    ):
        rdkafka = Rdkafka(server.kafka)
        rdkafka.create("fuzz")
        good = frames("fuzz")
        before = own_bytes()
        for _ in range(count):
            with connected(server.kafka) as connection, suppress(ConnectionError):
                connection.settimeout(0.05)  # Some ask for a wait, or state more bytes.
                connection.send_raw(gone_wrong(random, random.choice(good)))
                connection.send(last)
                answers_or_ends(connection)
        assert own_bytes() - before < GROWTH_BYTES_MAX
        assert rdkafka.produce("fuzz", [b"good"])
    assert [record.getMessage() for record in caplog.records] == []
