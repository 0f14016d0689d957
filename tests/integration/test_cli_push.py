"""`wings push`: files go in whole or not at all, once each, however often they are cut off."""

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from fix_calls import Calls
from fix_commands import Command
from fix_files import ReadSizes
from forked_commands import FORKED

import wings_client
from wings_client import Client
from wings_client.files import source
from wings_core.errors import Unavailable
from wings_server.testing import RunningServer

Push = Command

BLOCK_BYTES = 64 * 1024

SMALL_STAGES = f"""{FORKED}
from wings_client.cli import main, push_rows
from wings_client.files import source
source.BLOCK_BYTES = {BLOCK_BYTES}
push_rows.STAGE_BYTES = 1
main()
"""
"""A push of many stages, each of a block."""


@pytest.fixture
def push(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path
) -> Push:
    """Calls `wings push` in this process; returns its status and what it prints."""
    monkeypatch.setenv("WINGS_ENDPOINT", server.flight)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    return functools.partial(command, "push")


@pytest.fixture
def client(server: RunningServer) -> Generator[Client]:
    """A client of the server."""
    with wings_client.connect(server.flight) as opened:
        yield opened


@pytest.fixture
def topic(client: Client, new_topic_id: str) -> str:
    """A topic of one column, `n`."""
    client.create_topic(new_topic_id, {"n": "int64"})
    return new_topic_id


def numbers(client: Client, topic: str) -> list[Any]:
    return client.scan(topic).read_all()["n"].to_pylist()


def committed(client: Client, topic: str) -> int:
    return sum(state.next_offset for state in client.partitions(topic))


def write_lines(path: Path, first: int, end: int) -> Path:
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(first, end)))
    return path


def test_each_of_many_files_goes_in_on_its_own(
    push: Push, client: Client, topic: str, tmp_path: Path
) -> None:
    below = tmp_path / "files" / "below"
    below.mkdir(parents=True)
    write_lines(tmp_path / "files" / "a.jsonl", 0, 2)
    write_lines(below / "c.jsonl", 2, 4)
    (below / "_hidden.jsonl").write_text("{}")
    (below / "notes.txt").write_text("not rows")
    bad = tmp_path / "files" / "b.jsonl"
    bad.write_text('{"n": 7}\n{"n": "x"}\n')
    status, out, err = push(topic, tmp_path / "files")
    assert status == 1
    assert [line.split(" in ")[0] for line in out.splitlines()] == [
        f"2 rows pushed to {topic} from {tmp_path}/files/a.jsonl",
        f"2 rows pushed to {topic} from {below}/c.jsonl",
    ]
    assert f"{bad}:2: " in err
    assert "1 of 3 files were not pushed" in err
    assert numbers(client, topic) == [0, 1, 2, 3]
    write_lines(bad, 4, 6)
    status, out, err = push(topic, f"{tmp_path}/**/b.json?")
    assert (status, err) == (0, "")
    assert numbers(client, topic) == [0, 1, 2, 3, 4, 5]
    status, _, err = push(topic, f"{tmp_path}/none*.csv")
    assert status == 2
    assert "there is no file" in err


def test_a_file_is_not_visible_before_all_of_it_is_read(
    push: Push, client: Client, topic: str, tmp_path: Path, read_sizes: ReadSizes
) -> None:
    read_sizes(block=BLOCK_BYTES, stage=1)
    path = tmp_path / "rows.csv"
    path.write_text("n\n" + "1\n" * BLOCK_BYTES + "x\n")
    status, _, err = push(topic, path)
    assert status == 1
    assert f":{BLOCK_BYTES + 2}: " in err
    assert "nothing was pushed" in err
    assert committed(client, topic) == 0
    assert not list((tmp_path / "state").rglob("*.json"))


def test_a_push_that_was_killed_goes_on_where_it_was(
    push: Push, server: RunningServer, client: Client, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    rows = 400_000
    path.write_text("n\n" + "\n".join(map(str, range(rows))) + "\n")
    state = tmp_path / "state"
    child = subprocess.Popen(
        [sys.executable, "-c", SMALL_STAGES, "push", topic, str(path)],
        env={**os.environ, "WINGS_ENDPOINT": server.flight, "XDG_STATE_HOME": str(state)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    record: dict[str, Any] = {}
    while len(record.get("stages", ())) < 2:
        assert child.poll() is None, child.communicate()
        for found in state.rglob("*.json"):
            record = json.loads(found.read_text())
    child.kill()
    child.communicate()
    assert committed(client, topic) == 0
    status, out, _ = push(topic, path, "--resume")
    assert status == 0
    assert out.startswith(f"{rows:,} rows pushed")
    table = client.scan(topic).read_all()
    assert table["n"].to_pylist() == list(range(rows))
    # Nothing that was complete was pushed again: the first stages are those of the first push.
    (found,) = state.rglob("*.json")
    assert json.loads(found.read_text())["batch"] == record["batch"]
    status, out, _ = push(topic, path, "--resume")
    assert (status, out) == (0, f"{path} is in {topic} already: {rows:,} rows\n")
    assert committed(client, topic) == rows


def test_a_publish_whose_answer_was_lost_is_not_repeated(
    push: Push, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", 0, 3)
    publish = Client.publish

    def lost(*arguments: Any, **named: Any) -> Any:
        publish(*arguments, **named)
        raise Unavailable("the connection broke")

    with monkeypatch.context() as patched:
        patched.setattr(Client, "publish", lost)
        status, _, err = push(topic, path)
    assert status == 1
    assert "it may be pushed already; retry with --resume" in err
    assert push(topic, path, "--resume")[0] == 0
    assert numbers(client, topic) == [0, 1, 2]


def test_a_file_that_changed_is_pushed_from_the_start(
    push: Push, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", 0, 3)

    def cut_off(*_: Any, **__: Any) -> Any:
        raise Unavailable("the server is away")

    with monkeypatch.context() as patched:
        patched.setattr(Client, "publish", cut_off)
        assert push(topic, path)[0] == 1
    write_lines(path, 10, 12)
    status, _, err = push(topic, path, "--resume")
    assert status == 0
    assert "have changed" in err
    assert numbers(client, topic) == [10, 11]


def test_a_file_without_a_row_says_so(push: Push, topic: str, tmp_path: Path) -> None:
    for name in ("empty.csv", "empty.jsonl", "empty.parquet", "empty"):
        (tmp_path / name).touch()
        status, out, _ = push(topic, tmp_path / name)
        assert (status, out) == (0, f"0 rows pushed to {topic}: {tmp_path / name} is empty\n")
    (tmp_path / "names.csv").write_text("n\n")
    status, out, _ = push(topic, tmp_path / "names.csv")
    assert (status, out.startswith(f"0 rows pushed to {topic}")) == (0, True)


def test_a_file_whose_name_is_no_utf_8_goes_in_once(
    push: Push, client: Client, topic: str, tmp_path: Path
) -> None:
    for number, name in enumerate((b"a\xff.jsonl", b"b\xff.jsonl")):
        write_lines(tmp_path / os.fsdecode(name), number, number + 1)
    files = f"{tmp_path}/*.jsonl"
    status, out, err = push(topic, files)
    assert (status, err) == (0, "")
    assert "a\\udcff.jsonl" in out
    assert push(topic, files, "--resume")[0] == 0
    assert numbers(client, topic) == [0, 1]


def test_a_push_needs_no_home(
    push: Push, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert push(topic, write_lines(tmp_path / "a.jsonl", 0, 2))[0] == 0
    assert numbers(client, topic) == [0, 1]


def test_an_object_of_s3_is_pushed(
    push: Push, client: Client, topic: str, s3_url: str, tmp_path: Path
) -> None:
    import obstore
    from obstore.store import S3Store

    path = write_lines(tmp_path / "rows.jsonl", 0, 3)
    bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
    store = S3Store(bucket, client_options={"allow_http": True})
    obstore.put(store, f"{prefix}/rows.jsonl", path.read_bytes())
    assert push(topic, f"{s3_url}/rows.jsonl")[0] == 0
    assert numbers(client, topic) == [0, 1, 2]
    status, out, _ = push(topic, f"{s3_url}/rows.jsonl", "--resume")
    assert (status, "already" in out) == (0, True)
    assert "does not exist" in push(topic, f"{s3_url}/none.jsonl")[2]


def test_an_unknown_topic_is_told_before_anything_is_read(
    server: RunningServer, new_topic_id: str
) -> None:
    with standing(server, new_topic_id, "jsonl") as child:
        assert b"wings: there is no topic" in child.errors()
        assert child.process.wait(60) == 1


@pytest.mark.parametrize(
    ("ending", "given", "is_named"),
    [
        ("jsonl", b'{"n": 1}\n', True),
        ("jsonl", b'{"n": 1}\n{"n": ', False),
        ("csv", b"n\n1\n", False),
        ("csv", b'n\n1\n"2', True),
    ],
)
def test_ctrl_c_ends_a_push_whose_input_stands_still(
    server: RunningServer,
    client: Client,
    topic: str,
    tmp_path: Path,
    ending: str,
    given: bytes,
    is_named: bool,
) -> None:
    with standing(server, topic, ending, tmp_path / f"a.{ending}" if is_named else None) as child:
        child.give(given)
        assert client.fetch(topic, offset=0, timeout=60).num_rows == 1
        child.process.send_signal(signal.SIGINT)
        assert child.process.wait(60) == 130  # With its input still open.
        assert b"wings: stopped; " in child.errors()


@pytest.mark.parametrize(
    ("ending", "given", "bad"),
    [("jsonl", b'{"n": 1}\n', b'{"n": "x"}\n'), ("csv", b"n\n1\n", b"x\n")],
)
def test_a_bad_row_of_a_pipe_that_stays_open_is_refused_when_it_comes(
    server: RunningServer, client: Client, topic: str, ending: str, given: bytes, bad: bytes
) -> None:
    with standing(server, topic, ending) as child:
        child.give(given)
        assert client.fetch(topic, offset=0, timeout=60).num_rows == 1
        child.give(bad)
        assert child.process.wait(60) == 1
        line = 2 if ending == "jsonl" else 3
        assert f"wings: standard input:{line}: column 'n': ".encode() in child.errors()


@dataclass
class Standing:
    """A push whose input stays open."""

    process: "subprocess.Popen[bytes]"
    input: IO[bytes]

    def give(self, data: bytes) -> None:
        self.input.write(data)
        self.input.flush()

    def errors(self) -> bytes:
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextmanager
def standing(
    server: RunningServer, topic: str, ending: str, fifo: Path | None = None
) -> Generator[Standing]:
    """Start a push of standard input, or of a pipe with a name, which stays open."""
    if fifo is not None:
        os.mkfifo(fifo)
    named = ["-", "--format", ending] if fifo is None else [str(fifo)]
    process = subprocess.Popen(
        [sys.executable, "-m", "wings_client.cli", "push", topic, *named],
        env={**os.environ, "WINGS_ENDPOINT": server.flight},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        opened = process.stdin if fifo is None else fifo.open("wb")
        yield Standing(process, opened)
        opened.close()
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def test_types_come_from_samples_of_all_of_a_file(
    push: Push,
    client: Client,
    new_topic_id: str,
    tmp_path: Path,
    read_sizes: ReadSizes,
) -> None:
    read_sizes(head=100_000, sample=4_000)
    late = tmp_path / "late.csv"
    late.write_text('zip,"a ""b""",n\n' + '10001,"x\n""y"",1",1\n' * 12_000 + "SW1A,z,1.5\n")
    status, _, err = push(new_topic_id, late, "--create")
    assert status == 0
    assert err == f'created {new_topic_id}: zip string, a "b" string, n double\n'
    lines = tmp_path / "late.jsonl"
    lines.write_text('{"a": 1, "b": "x"}\n' * 12_000 + '{"a": 1.5, "c": true}\n')
    status, _, err = push(f"{new_topic_id}-2", lines, "--create")
    assert status == 0
    assert err == f"created {new_topic_id}-2: a double, b string, c bool\n"


def test_a_json_column_of_strings_takes_whatever_is_there_where_that_is_said(
    push: Push, client: Client, new_topic_id: str, tmp_path: Path
) -> None:
    rows = '{"Title": "Up"}, {"Title": 1408}, {"Title": null}, {"Title": 1.50}, {"Title": [1, "a"]}'
    for name, text in (("a.json", f"[{rows}]"), ("a.jsonl", rows.replace("}, {", "}\n{"))):
        (tmp_path / name).write_text(text)
        topic = f"{new_topic_id}-{name.replace('.', '-')}"
        status, _, err = push(topic, tmp_path / name, "--create")
        assert status == 1
        assert "Title" in err
        assert push(topic, tmp_path / name, "--create", "--field", "Title:string")[0] == 0
        assert push(topic, tmp_path / name)[0] == 1  # Unasked, no value becomes another.
        assert push(topic, tmp_path / name, "--field", "Title:string")[0] == 0
        titles = ["Up", "1408", None, "1.50", '[1, "a"]']
        assert client.scan(topic).read_all()["Title"].to_pylist() == titles * 2


def test_texts_of_csv_are_null_where_that_is_said(
    push: Push, client: Client, new_topic_id: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('n,text\n1,NA\nNA,"NA"\n-,\n')
    assert push(new_topic_id, path, "--create", "--null", "NA", "--null", "-")[0] == 0
    rows = client.scan(new_topic_id).read_all().to_pydict()
    assert rows == {"n": [1, None, None], "text": [None, "NA", None]}


def test_a_name_that_is_empty_is_no_directory(push: Push, topic: str) -> None:
    status, _, err = push(topic, "")
    assert status == 2
    assert "it is empty" in err


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_what_separates_values_is_recognised(
    push: Push, client: Client, new_topic_id: str, tmp_path: Path, delimiter: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"a{delimiter}b\n1,5{delimiter}x\n2,5{delimiter}y\n")
    assert push(new_topic_id, path, "--create")[0] == 0
    rows = client.scan(new_topic_id).read_all().to_pylist()
    assert rows == [{"a": "1,5", "b": "x"}, {"a": "2,5", "b": "y"}]


def test_a_topic_does_not_evolve_for_a_file_that_does_not_fit(
    push: Push, client: Client, topic: str, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("n,later\n1,x\n2,y\nmany,z\n")
    status, _, err = push(topic, bad, "--evolve")
    assert (status, ":4" in err, "nothing was pushed" in err) == (1, True, True)
    assert (client.topic(topic).schema_version, committed(client, topic)) == (1, 0)
    bad.write_text("n,later\n1,x\n2,y\n3,z\n")
    assert push(topic, bad, "--evolve")[0] == 0
    assert client.topic(topic).schema_version == 2
    assert client.scan(topic).read_all()["later"].to_pylist() == ["x", "y", "z"]


def test_a_type_is_not_widened_for_a_file_that_does_not_fit(
    push: Push, client: Client, new_topic_id: str, tmp_path: Path
) -> None:
    client.create_topic(new_topic_id, {"n": "int32", "m": "string not null"})
    path = tmp_path / "wide.parquet"
    pyarrow.parquet.write_table(pa.table({"n": [1, 1 << 40], "m": ["a", None]}), path)
    status, _, err = push(new_topic_id, path, "--evolve")
    assert (status, "row 2" in err, client.topic(new_topic_id).schema_version) == (1, True, 1)
    pyarrow.parquet.write_table(pa.table({"n": [1, 1 << 40], "m": ["a", "b"]}), path)
    assert push(new_topic_id, path, "--evolve")[0] == 0
    assert numbers(client, new_topic_id) == [1, 1 << 40]


def test_a_file_that_is_refused_was_read_by_no_thread_of_arrow_s(
    push: Push, topic: str, tmp_path: Path, calls: Calls, read_sizes: ReadSizes
) -> None:
    read_sizes(block=BLOCK_BYTES, head=BLOCK_BYTES)
    path = tmp_path / "rows.csv"
    path.write_text("n\n" + "1\n" * BLOCK_BYTES + "x\n" + "1\n" * 4 * BLOCK_BYTES)
    threads: set[threading.Thread] = set()
    calls.before(source.Source, "read", lambda *_: threads.add(threading.current_thread()))
    assert push(topic, path)[0] == 1
    assert threads == {threading.current_thread()}  # One that is left would abort Python's end.


def test_a_late_value_does_not_change_in_a_column_of_inferred_type(
    push: Push, client: Client, new_topic_id: str, tmp_path: Path, read_sizes: ReadSizes
) -> None:
    read_sizes(head=1_000, sample=100)
    below = tmp_path / "files"
    below.mkdir()
    rows = "1,12\n" * 3_000
    (below / "a.csv").write_text(f"i,n\n{rows[:2_500]}-1,007\n{rows}")
    (below / "b.csv").write_text("i,n\n2,12\n")
    (below / "c.csv").write_text("i,n\n3,007\n")
    status, _, err = push(new_topic_id, below / "a.csv", "--create")
    assert status == 1
    assert f"wings: {below}/a.csv:502: column 'n': '007' would be 7; nothing was pushed" in err
    assert "--field n:TYPE" in err
    status, _, err = push(new_topic_id, below / "b.csv", below / "c.csv", "--create")
    assert status == 1
    assert f"wings: {below}/c.csv:2: column 'n': '007' would be 7" in err  # Of one command.
    assert push(new_topic_id, below / "c.csv")[0] == 0  # By the topic's type, 007 is 7.
    assert client.scan(new_topic_id).read_all()["n"].to_pylist() == [12, 7]
    more = "1,2,3\n" * 900
    (below / "d.csv").write_text(f"i,n,more\n{more}1,2,03\n{more}")
    status, _, err = push(new_topic_id, below / "d.csv", "--evolve")
    assert (status, f"{below}/d.csv:902: column 'more': '03' would be 3" in err) == (1, True)
    assert client.topic(new_topic_id).schema_version == 1
    status, _, err = push(new_topic_id, below / "d.csv", "--evolve", "--field", "more:string")
    assert status == 0
    assert client.scan(new_topic_id).read_all()["more"].to_pylist()[902] == "03"  # After two.


def test_an_error_about_a_file_begins_with_its_name(
    push: Push, client: Client, new_topic_id: str, tmp_path: Path
) -> None:
    client.create_topic(new_topic_id, {"n": "int64 not null", "k": "string"}, "k")
    pyarrow.parquet.write_table(pa.table({"n": [1], "k": ["a"]}), tmp_path / "cut.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "cut.parquet").read_bytes()[:-9])
    pyarrow.parquet.write_table(pa.table({"n": [1, None], "k": ["a", "b"]}), tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pa.table({"n": [1]}), tmp_path / "b.parquet")
    texts = {
        "bad.csv": "n,k\n1,a\nx,b\n",
        "null.csv": "n,k\n1,a\n2,\n",
        "ragged.csv": "n,k\n1,a\n2\n",
        "bad.jsonl": '{"n": 1, "k": "a"}\n{"n": 1, "k": 2}\n',
        "other.jsonl": '{"n": 1, "k": "a", "x": 1}\n',
        "bad.json": '[{"n": 1, "k": "a"}, {"n": "x"}]',
        "gone.orc": "ORC",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    places = {
        "bad.csv": ":3: column 'n'",
        "null.csv": ":3: column 'k'",
        "ragged.csv": ":3: Expected 2",
        "bad.jsonl": ":2: column 'k'",
        "other.jsonl": ":1: column 'x'",
        "bad.json": ": row 2: ",
        "gone.orc": ": not ORC",
        "cut.parquet": ": Parquet magic",
        "a.parquet": ": row 2: column 'n'",
        "b.parquet": ": row 1: column 'k'",
    }
    status, _, err = push(new_topic_id, *(tmp_path / name for name in places))
    assert status == 1
    together = err.splitlines()[:-1]
    assert "10 of 10 files were not pushed" in err
    for (name, told), line in zip(places.items(), together, strict=True):
        assert line.startswith(f"wings: {tmp_path}/{name}{told}"), line
        status, _, alone = push(new_topic_id, tmp_path / name)
        assert (status, alone) == (1, line + "\n")


def test_folders_of_a_directory_are_columns(
    push: Push, client: Client, new_topic_id: str, tmp_path: Path
) -> None:
    for day, n in (("2026-01-01", 1), ("2026-01-02", 2)):
        folder = tmp_path / "files" / f"day={day}" / "k=7"
        folder.mkdir(parents=True)
        pyarrow.parquet.write_table(pa.table({"n": [n]}), folder / "a.parquet")
    status, _, err = push(new_topic_id, tmp_path / "files", "--create")
    assert status == 0
    assert err == f"created {new_topic_id}: n int64, day date32[day], k int64\n"
    assert push(new_topic_id, f"{tmp_path}/files/*/k=7/*.parquet")[0] == 0
    found = client.scan(new_topic_id).read_all()
    assert found["day"].cast(pa.string()).to_pylist() == ["2026-01-01", "2026-01-02"] * 2
    assert found["n"].to_pylist() == [1, 2] * 2
    other = f"{new_topic_id}-other"
    assert push(other, tmp_path / "files", "--create", "--exclude", "k")[0] == 0
    assert client.topic(other).schema.names == ["n", "day"]


def test_columns_of_files_are_chosen(
    push: Push, client: Client, new_topic_id: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"_id": "a", "__v": 0, "__typename": "T", "a,b": 1}\n')
    status, _, err = push(new_topic_id, tmp_path / "a.jsonl", "--create")
    assert status == 1
    assert err.endswith("; --exclude __v leaves it out\n")
    options = ("--exclude", "__v, __typename")
    assert push(new_topic_id, tmp_path / "a.jsonl", "--create", *options)[0] == 0
    status, _, err = push(new_topic_id, tmp_path / "a.jsonl")
    assert status == 1
    assert "a.jsonl:1: column '__v': there is no such field; there are _id, a,b; " in err
    assert "; nothing was pushed; --exclude" in err
    assert push(new_topic_id, tmp_path / "a.jsonl", "--columns", '_id,"a,b"')[0] == 0
    assert client.scan(new_topic_id).read_all().to_pylist() == [{"_id": "a", "a,b": 1}] * 2
    (tmp_path / "a.csv").write_text("_id,x\nb,1\n")
    status, _, err = push(new_topic_id, tmp_path / "a.csv", "--columns", "_id,a")
    assert (status, "a.csv: there is no column 'a'" in err) == (1, True)
