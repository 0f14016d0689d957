"""Notes of where pages lie: complete after a close or a crash, in order, and bounded."""

import itertools
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import pytest
from fix_metadata import SCHEMA, batch_of

from wings_core.metadata.sqlite import SqliteMetadata, notes
from wings_core.metadata.sqlite.notes import MOVED, PUSHED, read_notes
from wings_core.model import Topic
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import Partition

A, B = Partition('"a"'), Partition('"b"')

SECONDS_MAX = 10.0


def noted(path: Path) -> list[tuple[str, int, int]]:
    """Return the file, first and last offset of each page that is noted."""
    folios: dict[int, str] = {}
    found: list[tuple[str, int, int]] = []
    for table, rows in read_notes(path):
        if table == "folios":
            folios.update(dict(rows))  # pyright: ignore[reportArgumentType, reportCallIssue]
        if table in (PUSHED, MOVED):
            found += [(folios[row[4]], row[2], row[1]) for row in rows]
    return found


def push(metadata: SqliteMetadata, topic: Topic, folios: Iterable[str]) -> None:
    for folio in folios:
        metadata.registry.commit([batch_of(topic, {A: 3, B: 2}, folio=folio)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "NOTES"


def test_what_is_committed_is_noted_and_what_is_refused_is_not(tmp_path: Path, path: Path) -> None:
    with SqliteMetadata(tmp_path / "m.sqlite", notes=path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA, "key")
        push(metadata, topic, ["f", "g"])
        metadata.admin.delete_topic(topic.name)
        push(metadata, topic, ["h"])  # Refused.
    pages = noted(path)
    assert set(pages) == {("f", 0, 2), ("f", 0, 1), ("g", 3, 5), ("g", 2, 3)}
    topics = [row for table, rows in read_notes(path) if table == "topics" for row in rows]
    assert topics[-1][3] == "t"
    assert topics[-1][8] is not None, "a deletion is noted"


def test_after_a_crash_all_is_noted_anew(tmp_path: Path, path: Path) -> None:
    with SqliteMetadata(tmp_path / "m.sqlite", notes=path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA, "key")
        push(metadata, topic, ["f", "g"])
    expected = set(noted(path))
    data = path.read_bytes()
    for left in (b"", data[: len(data) // 2]):
        path.write_bytes(left)
        SqliteMetadata(tmp_path / "m.sqlite", notes=path).close()
        assert set(noted(path)) == expected
    path.unlink()  # As of a directory of before.
    SqliteMetadata(tmp_path / "m.sqlite", notes=path).close()
    assert set(noted(path)) == expected


def test_a_changed_byte_of_a_header_costs_at_most_its_own_notes(tmp_path: Path, path: Path) -> None:
    with SqliteMetadata(tmp_path / "m.sqlite", notes=path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA, "key")
        push(metadata, topic, ["f"])
    expected, data = noted(path), path.read_bytes()
    for at in range(20):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            if 4 <= at < 8:  # How long the rows are, which they tell themselves.
                assert noted(path) == expected
            list(read_notes(path))


def test_what_is_gone_does_not_stay_for_ever(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "REWRITE_BYTES_MIN", 2_000)
    monkeypatch.setattr(notes, "GATHER_SECONDS", 0.001)
    for number in range(8):
        with SqliteMetadata(tmp_path / "m.sqlite", notes=path) as metadata:
            topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA, "key")
            push(metadata, topic, [f"f{number}-{each}" for each in range(40)])
            metadata.admin.delete_topic(topic.name)
            while metadata.registry.purge(1_000):
                pass
    assert path.stat().st_size < 20_000
    assert len({folio for folio, _, _ in noted(path)}) < 8 * 40


def test_a_disk_that_takes_no_notes_takes_messages(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.mkdir()  # Cannot be written.
    with SqliteMetadata(tmp_path / "m.sqlite", notes=path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("t"), SCHEMA, "key")
        push(metadata, topic, ["f"])
        assert metadata.registry.locate(topic.uuid, A, 0, 9).log_end_offset == 3
    assert "notes of pages are incomplete" in caplog.text


@pytest.mark.parametrize("held_at", range(1, 8))
def test_a_close_ends_wherever_the_thread_of_notes_is(tmp_path: Path, held_at: int) -> None:
    """The thread is held where it enters a function of its module, until `close` waits for it."""
    calls, is_held, goes_on = itertools.count(1), threading.Event(), threading.Event()

    def follow(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename == notes.__file__ and threading.current_thread() is not closer:
            if next(calls) == held_at:
                is_held.set()
                goes_on.wait(SECONDS_MAX)
        elif code.co_name == "join" and threading.current_thread() is closer:
            goes_on.set()

    closer = threading.Thread(target=lambda: metadata.close(), daemon=True)
    threading.setprofile(follow)
    try:
        metadata = SqliteMetadata(tmp_path / "m.sqlite", notes=tmp_path / "NOTES")
        assert is_held.wait(SECONDS_MAX)
        closer.start()
        closer.join(SECONDS_MAX)
    finally:
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]
    assert not closer.is_alive()
