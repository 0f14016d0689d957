"""What `/metrics` tells of share groups, and that it stays small."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import act, chunks, create_topic, push, ticket_of
from prometheus_client.parser import text_string_to_metric_families
from share_calls import Member, create_group

from wings_core.model import LargestTopics
from wings_core.names import DEFAULT_NAMESPACE
from wings_server import log_standing
from wings_server.log_standing import KEPT_SECONDS, TOPICS_MAX, Standings
from wings_server.testing import RunningServer, running_server

PARTITIONS = 2_000


def scrape(server: RunningServer) -> str:
    answer = httpx.get(f"{server.http}/metrics", timeout=60)
    assert answer.status_code == 200
    return answer.text


def sample(text: str, name: str, group: str) -> float:
    (found,) = re.findall(rf'^{name}{{group="{group}",topic="[^"]+"}} (\S+)$', text, re.MULTILINE)
    return float(found)


def fetch_rows(client: flight.FlightClient, topic: str) -> list[int]:
    """Return the source offsets of all dead letters, in order."""
    reader = client.do_get(ticket_of(kind="scan", topic=topic, offset=0))
    return [offset for chunk in chunks(reader) for offset in _source_offsets(chunk)]


def _source_offsets(chunk: flight.FlightStreamChunk) -> list[Any]:
    return [] if chunk.data is None else chunk.data.column("source_offset").to_pylist()


def test_many_partitions_have_few_series(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        client = server.client()
        create_topic(client, "jobs", ["key: int64", "n: int64"], "key")
        keys = [key for key in range(PARTITIONS) for _ in range(1 + (key in {7, 1_999}))]
        push(client, "jobs", pa.record_batch({"key": keys, "n": keys}))
        groups = [f"group-{number}" for number in range(4)]
        for group in groups:
            create_group(client, "jobs", group)
        text = scrape(server)
        series = [line for line in text.splitlines() if not line.startswith("#")]
        assert len([line for line in series if line.startswith("wings_share")]) < 100
        assert len(series) < 500
        assert len(text) < 100_000
        for group in groups:
            assert sample(text, "wings_share_lag_messages", group) == PARTITIONS + 2
        largest = re.findall(
            r'wings_share_partition_lag_messages{group="group-0",partition="(\d+)".*} 2.0', text
        )
        assert sorted(largest) == ["1999", "7"]
        assert re.search(rf"^wings_topic_partitions{{.*}} {PARTITIONS}.0$", text, re.MULTILINE)
        (summed,) = re.findall(r"^wings_series_summed (\S+)$", text, re.MULTILINE)
        assert float(summed) == PARTITIONS - 99
        ends = re.findall(r"^wings_topic_end_offset{.*} (\S+)$", text, re.MULTILINE)
        assert len(ends) == 100
        assert sum(map(float, ends)) == PARTITIONS + 2, "with those of `other`"


def test_many_topics_have_few_series(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        client = server.client()
        for number in range(TOPICS_MAX + 5):
            create_topic(client, f"t{number}", ["n: int64"])
        largest = ["t3", f"t{TOPICS_MAX + 4}"]
        for topic, rows in (*((topic, 5_000) for topic in largest), ("t7", 10), ("t8", 10)):
            push(client, topic, pa.record_batch({"n": [*range(rows)]}))
        last = f"t{TOPICS_MAX + 1}"
        create_group(client, last)
        offsets = [{"topic": "t3", "partition": None, "offset": 1}]
        act(client, "commit-offsets", consumer="c", offsets=offsets)
        found = {family.name: family for family in text_string_to_metric_families(scrape(server))}

        def samples(name: str) -> dict[str, float]:
            return {each.labels["topic"]: each.value for each in found[name].samples}

        for name in ("wings_topic_partitions", "wings_topic_end_offset"):
            values = samples(name)
            assert len(found[name].samples) == TOPICS_MAX, name
            assert set(largest) <= {topic.rpartition("/")[2] for topic in values}
            assert values["other"] == 0, "nothing was written to those"
        assert sum(samples("wings_topic_partitions").values()) == 4
        assert sum(samples("wings_tier_rows").values()) == 10_020
        (summed,) = found["wings_series_summed"].samples
        assert summed.value == 6
        (lag,) = found["wings_consumer_lag_messages"].samples
        assert lag.value == 4_999
        assert [*samples("wings_share_lag_messages")] == [str(DEFAULT_NAMESPACE.topic(last))]


def test_a_large_log_is_looked_at_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(tmp_path) as server:
        client = server.client()
        create_topic(client, "jobs", ["n: int64"])
        now = 0.0
        standings = Standings(server.server.log, lambda: now)

        def partitions() -> int:
            return standings.look().largest.topics[0].sums.partitions

        assert partitions() == 0
        monkeypatch.setattr(log_standing, "SMALL", 1)
        push(client, "jobs", pa.record_batch({"n": [1]}))
        assert partitions() == 1, "a small one is looked at each time"
        act(client, "delete-topic", topic="jobs")
        now = KEPT_SECONDS - 0.1
        assert partitions() == 1, "as of a moment ago"
        now = KEPT_SECONDS
        assert standings.look().largest.topics == ()


def test_a_look_at_a_log_does_not_wait_for_another(tmp_path: Path) -> None:
    """Of a group whose replicas are slow, for one."""
    with running_server(tmp_path) as server, ThreadPoolExecutor(1) as threads:
        log = server.server.log
        standings = Standings(log)
        looking, goes_on = threading.Event(), threading.Event()
        largest_topics = log.maintenance.largest_topics

        def look_slowly(topics_max: int, groups_max: int) -> LargestTopics:
            if not looking.is_set():
                looking.set()
                assert goes_on.wait(60)
            return largest_topics(topics_max, groups_max)

        with patch.object(log.maintenance, "largest_topics", look_slowly):
            try:
                first = threads.submit(standings.look)
                assert looking.wait(30)
                second = threading.Thread(target=standings.look, daemon=True)
                second.start()
                second.join(30)
                assert not second.is_alive()
            finally:
                goes_on.set()
            assert first.result(30).largest.topics == ()


def test_rejections_of_many_messages_share_flushes(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        client = server.client()
        create_topic(client, "jobs", ["n: int64"])
        push(client, "jobs", pa.record_batch({"n": [*range(600)]}))
        create_group(client, "jobs", dlq_topic="jobs-dead")
        member = Member(client, "jobs")
        (leased,) = member.acquire(max_messages=600)

        def flushes() -> float:
            (found,) = re.findall(r"^wings_flushes_total (\S+)$", scrape(server), re.MULTILINE)
            return float(found)

        before = flushes()
        acks = [leased.ack("reject", offset, offset, reason="bad") for offset in range(600)]
        assert set(member.acknowledge(*acks)) == {None}
        assert flushes() - before <= 3
        letters = fetch_rows(client, "jobs-dead")
        assert letters == [*range(600)]


def test_deliveries_are_counted_by_group(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        client = server.client()
        create_topic(client, "jobs", ["n: int64"])
        push(client, "jobs", pa.record_batch({"n": [*range(10)]}))
        create_group(client, "jobs", delivery_limit=2)
        create_group(client, "jobs", "other")
        member = Member(client, "jobs")
        (leased,) = member.acquire()
        acks = (leased.ack("accept", 0, 4), leased.ack("reject", 5, 6), leased.ack("release", 7, 9))
        assert member.acknowledge(*acks) == [None] * 3
        (again,) = member.acquire()
        assert again.offsets == [7, 8, 9]
        assert member.acknowledge(again.ack("release")) == [None], "it is at the limit"
        text = scrape(server)
        counts = {
            name: sample(text, f"wings_share_{name}_messages_total", "billing")
            for name in ("delivered", "redelivered", "accepted", "dead_lettered")
        }
        assert counts == {"delivered": 13, "redelivered": 3, "accepted": 5, "dead_lettered": 5}
        assert sample(text, "wings_share_lag_messages", "other") == 10
        assert 'wings_share_delivered_messages_total{group="other"' not in text
