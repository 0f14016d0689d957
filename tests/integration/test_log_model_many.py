"""Reads of many partitions, in a real server and in the plain model of the log."""

import json
from typing import Any

import pytest
from flight_calls import Json
from hypothesis import strategies as st
from hypothesis.stateful import rule
from log_model import Filter, Key, Row, TopicModel
from many_calls import ManyAnswer, get_many
from test_log_model import (
    FIELDS,
    FILTERS,
    KEYS,
    LIMITS,
    LogMachine,
    OneServer,
    names_of,
    one_server,
    run,
    shown,
)

__all__ = ["one_server"]

LONG_MS = 40_000
"""How long a fetch would wait that can be satisfied, if it were wrong."""


class ManyMachine(LogMachine):
    """Reads many partitions of a topic too."""

    @rule(topic=st.sampled_from(list(FIELDS)), data=st.data())
    def read_many(self, topic: str, data: st.DataObject) -> None:
        model = self.topics[topic]
        ticket: Json = {"topic": self.full(topic)}
        kind = ticket["kind"] = data.draw(st.sampled_from(["fetch", "scan", "follow"]))
        starts, stops = self._draw_partitions(model, topic, ticket, data)
        ticket["system_columns"] = data.draw(st.booleans(), label="system columns")
        row_filter = data.draw(st.sampled_from([None, None, *FILTERS]), label="filter")
        if row_filter is not None:
            ticket["filter"] = row_filter.sql
        rows = {key: self._rows(model, key, starts[key], stops[key], row_filter) for key in starts}
        found = sum(len(each) for each in rows.values())
        least, most = 1, 1 << 62
        if kind == "fetch":
            most = data.draw(st.integers(1, 30), label="max_messages")
            least = data.draw(st.integers(1, most), label="min_messages")
            ticket |= {"min_messages": least, "max_messages": most}
        waits = kind == "follow" or (kind == "fetch" and found < least)
        if kind != "scan":
            past = {"deadline": "2020-01-01T00:00:00Z"}
            ticket |= past if waits and row_filter is None else {"timeout_ms": LONG_MS}
            if waits and row_filter is not None:
                ticket["timeout_ms"] = 400
        answer = get_many(self.client, **ticket)
        while waits and row_filter is not None and ticket["timeout_ms"] < LONG_MS:
            ends_of = {key: max(start, len(model.log(key))) for key, start in starts.items()}
            if answer.next_offsets == ends_of:
                break
            # On a busy machine the deadline comes before the filter has looked at everything.
            ticket["timeout_ms"] *= 10
            answer = get_many(self.client, **ticket)
        ends = {"scan": "end_offset", "follow": "deadline"}
        expected = "min_messages" if found >= least else "deadline"
        expected = "max_messages" if found >= most else expected
        assert answer.end == ends.get(kind, expected)
        self._check(model, topic, ticket, answer, starts, rows, min(found, most))

    def _draw_partitions(
        self, model: TopicModel, topic: str, ticket: Json, data: st.DataObject
    ) -> tuple[dict[Key, int], dict[Key, int]]:
        """Draw what of which partitions is read; return where it begins and ends in each."""
        scans = ticket["kind"] == "scan"
        default = data.draw(st.none() | st.integers(0, 30), label="offset")
        if default is not None:
            ticket["offset"] = default
        default = default or 0
        end = None
        if scans and data.draw(st.booleans(), label="an end"):
            end = ticket["end_offset"] = default + data.draw(st.integers(0, 40))
        exists = list(model.logs) if model.key is not None else [None]
        starts: dict[Key, int] = dict.fromkeys(exists, default)
        ends: dict[Key, int | None] = dict.fromkeys(exists, end)
        ticket["partitions"] = "all"
        if data.draw(st.booleans(), label="positions"):
            keys = st.lists(st.sampled_from(KEYS[topic]), unique=True)
            positions = ticket["positions"] = [
                (key, data.draw(st.integers(0, len(model.log(key)) + 2)))
                for key in data.draw(keys, label="positions of")
            ]
            starts |= {key: offset for key, offset in positions if key in starts}
        elif data.draw(st.booleans(), label="a list"):
            keys = st.lists(st.sampled_from(KEYS[topic]), min_size=1, unique=True)
            starts, ends, entries = {}, {}, []
            for key in data.draw(keys, label="partitions"):
                entry: Json = {"partition": key}
                if data.draw(st.booleans(), label="an offset of its own"):
                    entry["offset"] = data.draw(st.integers(0, len(model.log(key)) + 2))
                starts[key], ends[key] = entry.get("offset", default), end
                if scans and (end is not None or data.draw(st.booleans(), label="its own end")):
                    entry["end_offset"] = starts[key] + data.draw(st.integers(0, 30))
                    ends[key] = entry["end_offset"]
                entries.append(
                    entry if len(entry) > 1 else data.draw(st.sampled_from([entry, key]))
                )
            ticket["partitions"] = entries
        stops: dict[Key, int] = {}
        for key, stop in ends.items():
            log_end = len(model.log(key))
            stops[key] = log_end if stop is None else min(stop, log_end)
        return starts, stops

    def _rows(
        self, model: TopicModel, key: Key, start: int, stop: int, row_filter: Filter | None
    ) -> list[tuple[int, Row]]:
        log = model.log(key)
        return [
            (offset, log[offset])
            for offset in range(start, stop)
            if row_filter is None or row_filter.keep(log[offset].values)
        ]

    def _check(
        self,
        model: TopicModel,
        topic: str,
        ticket: Json,
        answer: ManyAnswer,
        starts: dict[Key, int],
        rows: dict[Key, list[tuple[int, Row]]],
        total: int,
    ) -> None:
        assert answer.num_rows == total
        assert set(answer.next_offsets) == set(starts)
        assert all(batch.num_rows <= LIMITS.wire_rows_max for batch in answer.batches)
        complete = answer.end != "max_messages"
        for key, start in starts.items():
            expected = rows[key]
            found = answer.rows.get(key, [])
            count = len(found)
            assert complete <= (count == len(expected))
            system_columns: bool = ticket["system_columns"]
            assert found == self._shown(topic, key, expected[:count], system_columns=system_columns)
            # Going on from here loses and repeats nothing.
            reached = answer.next_offsets[key]
            assert reached >= start
            assert [offset for offset, _ in expected[:count] if offset >= reached] == []
            assert [offset for offset, _ in expected[count:] if offset < reached] == []
            assert answer.log_end_offsets[key] == len(model.log(key))
            if complete and ticket["kind"] != "scan":
                assert reached == max(start, len(model.log(key)))

    def _shown(
        self, topic: str, key: Key, rows: list[tuple[int, Row]], *, system_columns: bool
    ) -> list[Json]:
        found: list[Any] = shown(rows, names_of(topic), system_columns=system_columns)
        if system_columns:
            for row in found:
                row["__partition"] = json.dumps(key, ensure_ascii=False)
        return found


@pytest.mark.timeout(600)  # A failure takes minutes to be made small.
def test_a_server_reads_many_partitions_as_a_plain_model(one_server: OneServer) -> None:
    run(one_server, examples=4, steps=30, machine_type=ManyMachine)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_a_server_reads_many_partitions_as_a_plain_model_for_long(one_server: OneServer) -> None:
    run(one_server, examples=1_000, steps=60, machine_type=ManyMachine)
