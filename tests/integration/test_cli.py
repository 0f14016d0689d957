"""The `wings` command against real servers: mostly called in this process, as that is quicker."""

import contextlib
import gzip
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from breakable_proxy import breakable
from fix_commands import Command, Result
from fix_files import ReadSizes
from fix_server import Trim
from held_address import held_address
from tables import each

import wings_client
from wings_client import Retry
from wings_core.errors import TopicNotFound
from wings_core.kafka_topics import topic_id_of
from wings_core.partitions import Partition
from wings_server.testing import RunningServer, ServerProcess, server_process

DATA = Path(__file__).parents[3] / "shared" / "data"


Wings = Command


@pytest.fixture
def wings(server: RunningServer, monkeypatch: pytest.MonkeyPatch, command: Command) -> Wings:
    """Calls the command in this process, its endpoint the module's server."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: object, endpoint: str = server.flight) -> Result:
        monkeypatch.setenv("WINGS_ENDPOINT", endpoint)
        return command(*arguments)

    return call


def start(
    server: Any,
    *arguments: str,
    stdin: int | None = None,
    stdout: int | IO[bytes] = subprocess.PIPE,
) -> "subprocess.Popen[bytes]":
    """Start the command as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "wings_client.cli", *arguments],
        env={**os.environ, "WINGS_ENDPOINT": server.flight},
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


@contextlib.contextmanager
def killed_on_failure(child: "subprocess.Popen[bytes]") -> Generator[None]:
    """Kill a process that would go on for ever where the block fails."""
    try:
        yield
    except BaseException:
        child.kill()
        raise


def flights(rows: int = 10) -> pa.Table:
    return pa.table(
        {
            "origin": [("JFK", "LAX")[index % 2] for index in range(rows)],
            "delay (min)": list(range(rows)),
        }
    )


@pytest.fixture
def topic(server: RunningServer, new_topic_id: str) -> str:
    """A topic of flights: ten, five of each origin."""
    with wings_client.connect(server.flight) as client:
        table = flights()
        client.create_topic(new_topic_id, table.schema, "origin")
        client.push(new_topic_id, table)
    return new_topic_id


# The command as a whole.


@pytest.mark.parametrize("wanted", ["table", "arrow"])
def test_output_that_cannot_be_written_is_one_line(
    server: RunningServer, topic: str, wanted: str
) -> None:
    arguments = ["fetch", topic, "--partition", "JFK", "--offset", "0", "--format", wanted]
    with Path("/dev/full").open("wb") as full, start(server, *arguments, stdout=full) as child:
        _, err = child.communicate(timeout=150)
    assert (child.returncode, err) == (1, b"wings: No space left on device\n")


@pytest.mark.parametrize("encoding", [pytest.param("latin-1", marks=pytest.mark.soak), "ascii"])
def test_a_terminal_of_another_encoding_gets_what_it_can_show(
    server: RunningServer, topic: str, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    with start(server, "fetch", topic, "--partition", "JFK", "--offset", "4") as child:
        out, err = child.communicate(timeout=150)
    assert (child.returncode, err) == (0, b"")
    assert out.splitlines()[2:] == [
        b"origin ? delay (min)",
        b"?" * 20,
        b"JFK    ?           8",
    ]


NAMING_WHAT_IS_NOT_THERE = (
    ("backup", "list", "{folder}"),
    ("backup", "prune", "{folder}", "--keep", "1", "--yes"),
    ("consume", "reader", "nowhere"),
    ("consumer", "describe", "nobody"),
    ("export", "nowhere", "{folder}/rows.csv"),
    ("fetch", "nowhere", "--from", "0"),
    ("fetch", "nowhere", "--from", "0", "--format", "json"),
    ("gather", "nowhere"),
    ("group", "describe", "nobody"),
    ("group", "lag", "nobody"),
    ("group", "reset", "nobody", "nowhere", "--to", "earliest", "--yes"),
    ("ingest", "status", "--source", "{folder}/none.toml"),
    ("maintain", "nowhere"),
    ("profile", "show", "nobody"),
    ("push", "nowhere", "{folder}/rows.csv"),
    ("share", "alter", "nobody", "nowhere", "--delivery-limit", "3"),
    ("share", "consume", "nobody", "nowhere"),
    ("share", "create", "nobody", "nowhere"),
    ("share", "delete", "nobody", "nowhere", "--yes"),
    ("share", "describe", "nobody", "nowhere"),
    ("share", "dlq", "redrive", "nowhere", "--yes"),
    ("share", "dlq", "show", "nowhere"),
    ("share", "members", "nobody", "nowhere"),
    ("share", "purge", "nobody", "nowhere", "--yes"),
    ("share", "seek", "nobody", "nowhere", "--to", "earliest", "--yes"),
    ("share", "work", "nobody", "nowhere", "--exec", "true"),
    ("sql", "from nowhere"),
    ("sql", "--follow", "from nowhere"),
    ("tail", "nowhere"),
    ("token", "alter", "nobody"),
    ("token", "revoke", "nobody", "--yes"),
    ("topic", "alter", "nowhere", "--add", "n:int64"),
    ("topic", "delete", "nowhere", "--yes"),
    ("topic", "describe", "nowhere"),
)


def test_errors_go_to_standard_error_with_exit_status_1_and_those_of_usage_with_2(
    wings: Wings, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "rows.csv").write_text("n\n1\n")
    for texts in NAMING_WHAT_IS_NOT_THERE:
        arguments = [text.format(folder=tmp_path) for text in texts]
        with subtests.test(" ".join(texts)):
            found = wings(*arguments)
            assert (found.status, found.out) == (1, "")
            assert len(found.err.splitlines()) == 1
    misused = wings("fetch", "nowhere", "--no-such-option")
    assert (misused.status, misused.out) == (2, "")


def test_a_name_that_is_no_text_is_refused(server: RunningServer) -> None:
    with start(server, "fetch", "\udcff", "--offset", "0") as child:
        out, err = child.communicate(timeout=150)
    assert (child.returncode, out) == (1, b"")
    assert err == b"Topic: \\udcff, Partition: null, Error: not valid Unicode: '\\udcff'\n"


def test_a_closed_standard_output_is_no_crash(server: RunningServer, topic: str) -> None:
    command = [sys.executable, "-m", "wings_client.cli", "topic", "describe", topic]
    child = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command],
        env={**os.environ, "WINGS_ENDPOINT": server.flight},
        stderr=subprocess.PIPE,
        timeout=50,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, b"")


@pytest.mark.parametrize("wanted", ["table", "json"])
def test_a_reader_that_has_enough_is_no_error(
    server: RunningServer, new_topic_id: str, wanted: str
) -> None:
    with wings_client.connect(server.flight) as client:
        client.create_topic(new_topic_id, {"n": "int64"})
        client.push(new_topic_id, {"n": list(range(30_000))})
    arguments = ["--offset", "0", "--max-messages", "30000", "--format", wanted]
    with start(server, "fetch", new_topic_id, *arguments) as child:
        assert child.stdout is not None
        assert child.stdout.read(10)
        child.stdout.close()
        assert child.stderr is not None
        assert child.stderr.read() == b""
    assert child.returncode == 0


def test_ctrl_c_ends_a_fetch_that_waits(server: RunningServer, topic: str) -> None:
    arguments = ["--partition", "new", "--offset", "0", "--timeout", "100000"]
    with start(server, "fetch", topic, *arguments) as child:
        server.wait_for_waiting(1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=150)
    assert (child.returncode, out, err) == (130, b"", b"")


# Topics.


def test_a_topic_for_kafka_is_created_and_gains_partitions(wings: Wings, new_topic_id: str) -> None:
    kafka_name = new_topic_id.upper()
    created = wings("topic", "create", kafka_name, "--kafka-partitions", "3")
    assert created.status == 0
    topic_id = created.out.partition(":")[0]
    assert topic_id == topic_id_of(kafka_name)
    described = wings("topic", "describe", topic_id).out
    config = f'"name": "{kafka_name}", "value": "binary", "cleanup_policy": "delete"}}\n'
    assert f'kafka: {{"partitions": 3, {config}' in described
    assert "0 messages, 0 bytes, 3 partitions" in described
    altered = wings("topic", "alter", topic_id, "--kafka-partitions", "4").out
    assert altered == f'kafka: {{"partitions": 4, {config}'
    assert wings("topic", "alter", topic_id, "--kafka-partitions", "3").status == 1
    rows = wings("topic", "create", new_topic_id, "--kafka-partitions", "1", "--field", "n:int64")
    assert rows.out == f"{new_topic_id}: partition int32, n int64; partitioned by partition\n"
    for topic in (topic_id, new_topic_id):
        assert wings("topic", "delete", topic, "--yes").status == 0


def test_a_topic_is_created_listed_described_and_deleted(wings: Wings, new_topic_id: str) -> None:
    fields = ("--field", "key:int64", "--field", "a b:list<item: string> not null")
    created = wings("topic", "create", new_topic_id, *fields, "--partition-key", "key")
    assert created == Result(
        0,
        f"{new_topic_id}: key int64, a b list<item: string> not null; partitioned by key\n",
        "",
    )
    again = wings("topic", "create", new_topic_id, *fields)
    assert (again.status, again.out) == (1, "")
    assert again.err.startswith("wings: ")
    assert again.err.count("\n") == 1
    same = wings(
        "topic", "create", new_topic_id, *fields, "--partition-key", "key", "--if-not-exists"
    )
    assert same.status == 0
    listed = wings("topic", "list", "--namespace", "default").out
    assert any(line.split("│")[0].strip() == new_topic_id for line in listed.splitlines())
    described = wings("topic", "describe", new_topic_id).out
    assert "Partition key: key" in described
    assert "a b    │ list<item: string> │ no" in described
    refused = wings("topic", "delete", new_topic_id)
    assert refused.status == 2
    assert "--yes" in refused.error
    assert wings("topic", "delete", new_topic_id, "--yes").out == f"{new_topic_id} is deleted\n"
    assert wings("topic", "describe", new_topic_id).status == 1


def test_a_topic_is_created_like_a_file(wings: Wings, new_topic_id: str, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(flights(), tmp_path / "flights.parquet")
    like = ("--like", tmp_path / "flights.parquet", "--field", "delay (min):int16")
    created = wings("topic", "create", new_topic_id, *like)
    assert created.out == f"{new_topic_id}: origin string, delay (min) int16\n"


def test_of_a_file_that_a_topic_is_like_columns_are_chosen(
    wings: Wings, new_topic_id: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("a;__v;b;c\n1;2;3;4\n")
    (tmp_path / "a.jsonl").write_text('{"a": 1, "b": 2, "c": 3}\n{"a": 1, "b": "x", "c": 3}\n')
    create = ("topic", "create", new_topic_id, "--if-not-exists")
    expected = Result(0, f"{new_topic_id}: a int64, b string\n", "")
    for chosen in (
        ("--columns", "a,b"),
        ("--exclude", "__v,c"),
        ("--exclude", "__v", "--exclude", "c"),
    ):
        for file in ("a.csv", "a.jsonl"):
            like = ("--like", tmp_path / file, "--field", "b:string")
            assert wings(*create, *like, *chosen) == expected
    unknown = wings(*create, "--like", tmp_path / "a.csv", "--columns", "d")
    assert unknown.err.endswith("a.csv: there is no column 'd'\n")
    alone = wings("topic", "create", new_topic_id, "--field", "a:int64", "--exclude", "b")
    assert alone.status == 2
    assert "go with --like" in alone.error


def test_columns_must_come_from_somewhere(wings: Wings, new_topic_id: str) -> None:
    result = wings("topic", "create", new_topic_id)
    assert result.status == 2
    assert "--field" in result.error


def test_an_unknown_topic_suggests_names_like_it(wings: Wings, topic: str) -> None:
    for arguments in (("topic", "describe"), ("tail",), ("consume", "somebody")):
        result = wings(*arguments, topic.replace("topic", "topik"))
        assert (result.status, result.out) == (1, "")
        assert f"did you mean '{topic}'" in result.err or "did you mean 'topic-" in result.err
        assert result.err.count("\n") == 1
    misspelt = topic.replace("topic", "topik")
    for arguments in (("sql", f'SELECT * FROM "{misspelt}"'), ("push", misspelt, "-")):
        result = wings(*arguments)
        assert (result.status, result.out) == (1, "")
        assert "did you mean 'topic-" in result.err
    assert "--create creates it from the first rows" in result.err


def test_a_server_that_is_not_there_is_one_line(wings: Wings) -> None:
    result = wings("topic", "list", endpoint="grpc://127.0.0.1:1")
    assert result == Result(
        1,
        "",
        "wings: no server answers at grpc://127.0.0.1:1: start one with `wings serve`, or give "
        "its address with --endpoint\n",
    )
    assert wings("topic", "list", endpoint="127.0.0.1:1").status == 2


# Fetch.


def test_fetch_prints_where_the_messages_are_and_a_table(wings: Wings, topic: str) -> None:
    result = wings("fetch", topic, "--offset", 1, "--partition", "JFK", "--max-messages", 2)
    assert result == Result(
        0,
        f"Topic: {topic}, Partition: JFK, Start: 1, End: 2\n"
        "\n"
        "origin │ delay (min)\n"
        "───────┼────────────\n"
        "JFK    │           2\n"
        "JFK    │           4\n",
        "",
    )


def test_an_address_of_the_other_protocol_is_told(
    wings: Wings, server: RunningServer, topic: str
) -> None:
    swapped = {
        server.http.replace("http:", "grpc:"): "speaks HTTP, not Arrow Flight",
        server.flight.replace("grpc:", "http:"): "is not an HTTP server",
    }
    for endpoint, problem in swapped.items():
        found = wings("fetch", topic, "--partition", "JFK", "--offset", 0, endpoint=endpoint)
        assert found.status == 1
        expected = f"Topic: {topic}, Partition: JFK, Error: {endpoint} {problem}"
        assert found.out == ""
        assert found.err.startswith(expected)


def test_fetch_of_nothing_has_no_end(wings: Wings, topic: str) -> None:
    result = wings("fetch", topic, "--offset", 5, "--partition", "LAX", "--timeout", 2)
    assert result.status == 0
    assert result.out.startswith(f"Topic: {topic}, Partition: LAX, Start: 5, End: null\n\norigin │")


@pytest.mark.parametrize(
    ("arguments", "partition", "message"),
    [
        (("--offset", 0, "--max-messages", 0), "null", "max_messages"),
        (("--offset", 0, "--partition", "JFK", "--min-messages", 0), "JFK", "min_messages"),
        (("--offset", 0, "--partition", "JFK", "--columns", "x"), "JFK", "x"),
        (("--offset", 0, "--partition", "JFK", "--filter", "1 +"), "JFK", "filter"),
    ],
)
def test_a_fetch_that_fails_is_one_line(
    wings: Wings, topic: str, arguments: tuple[object, ...], partition: str, message: str
) -> None:
    result = wings("fetch", topic, *arguments)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"Topic: {topic}, Partition: {partition}, Error: ")
    assert result.err.count("\n") == 1
    assert message in result.err
    assert wings("fetch", topic, *arguments, "--format", "json") == result


def test_fetch_writes_data_alone_for_pipes(wings: Wings, topic: str) -> None:
    arguments = (
        "fetch",
        topic,
        "--offset",
        0,
        "--partition",
        "LAX",
        "--filter",
        '"delay (min)" > 5',
    )
    found = [{"origin": "LAX", "delay (min)": 7}, {"origin": "LAX", "delay (min)": 9}]
    assert json.loads(wings(*arguments, "--format", "json").out) == found
    assert [*map(json.loads, wings(*arguments, "--format", "jsonl").out.splitlines())] == found
    lines = wings(*arguments, "--format", "csv").out
    assert lines == '"origin","delay (min)"\n"LAX",7\n"LAX",9\n'
    nothing = wings(
        *arguments[:2], "--offset", 9, *arguments[4:6], "--timeout", 2, "--format", "json"
    )
    assert nothing.out == "[]\n"


def test_fetch_without_a_partition_shows_each(wings: Wings, topic: str) -> None:
    shown = wings("fetch", topic, "--offset", 1, "--columns", "delay (min)").out
    heads = [line for line in shown.splitlines() if line.startswith("Topic: ")]
    assert heads == [
        f"Topic: {topic}, Partition: {key}, Start: 1, End: {end}"
        for key, end in (("JFK", 4), ("LAX", 4))
    ]
    rows = json.loads(wings("fetch", topic, "--offset", 0, "--format", "json").out)
    assert len(rows) == 10
    nothing = wings("fetch", topic, "--offset", "latest", "--timeout", 2).out
    assert nothing == f"Topic: {topic}, Partition: all, Start: null, End: null\n"


def test_fetch_shows_chosen_and_system_columns(wings: Wings, topic: str) -> None:
    shown = wings(
        "fetch", topic, "--offset", "latest", "--partition", "LAX", "--timeout", 2,
        "--columns", "delay (min)", "--system-columns",
    )  # fmt: skip
    assert shown.out.splitlines()[2] == "delay (min) │ __offset │ __timestamp"


def test_an_offset_that_is_none_is_a_usage_error(wings: Wings, topic: str) -> None:
    result = wings("fetch", topic, "--offset", "first")
    assert result.status == 2
    assert "expected a number" in result.error


def test_fetch_over_http_prints_the_same(wings: Wings, server: RunningServer, topic: str) -> None:
    arguments = ("fetch", topic, "--offset", 1, "--partition", "JFK", "--max-messages", 2)
    for more in ((), ("--format", "json")):
        assert wings(*arguments, *more, endpoint=server.http) == wings(*arguments, *more)
    failed = wings("fetch", topic, "--offset", 0, endpoint=server.http)
    assert failed.status == 1
    assert failed.out == ""
    assert failed.err.startswith(f"Topic: {topic}, Partition: null, Error: the topic is partition")
    unknown = wings("fetch", topic + "x", "--offset", 0, endpoint=server.http)
    assert "did you mean 'topic-" in unknown.err
    assert wings(*arguments, "--filter", "true", endpoint=server.http).status == 2
    assert wings("topic", "list", endpoint=server.http).status == 2
    nobody = wings(*arguments, endpoint="http://127.0.0.1:1")
    assert nobody.status == 1
    assert "Error: no server answers at http://127.0.0.1:1" in nobody.err


# Push.


def test_a_file_makes_its_topic(wings: Wings, new_topic_id: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([{"k": index % 3} for index in range(9)]))
    push = ("push", new_topic_id, tmp_path / "rows.json")
    assert wings(*push).status == 1
    pushed = wings(*push, "--create", "--partition-key", "k")
    assert pushed.status == 0
    assert pushed.out.startswith(f"9 rows pushed to {new_topic_id} in ")
    assert pushed.err == f"created {new_topic_id}: k int64; partitioned by k\n"
    assert wings(*push, "--create", "--partition-key", "k").err == ""
    assert wings(*push, "--create", "--partition-key", "x").status == 1
    fetched = wings("fetch", new_topic_id, "--partition", 2, "--offset", 0)
    assert fetched.out.startswith(f"Topic: {new_topic_id}, Partition: 2, Start: 0, End: 5\n")


def test_a_topic_that_was_made_for_a_file_is_deleted_where_nothing_of_it_was_pushed(
    wings: Wings, server: RunningServer, new_topic_id: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("k,n\na,1\n,2\n")
    push = ("push", new_topic_id, path, "--partition-key", "k", "--create")
    failed = wings(*push)
    assert failed.status == 1
    created, deleted, problem = failed.err.splitlines()
    assert created.startswith(f"created {new_topic_id}: ")
    assert deleted == f"deleted {new_topic_id}, which is empty"
    assert problem.endswith("; nothing was pushed")
    with wings_client.connect(server.flight) as client:
        with pytest.raises(TopicNotFound):
            client.topic(new_topic_id)
        # One that was there before stays, and so does one with rows.
        client.create_topic(new_topic_id, {"k": "string", "n": "int64"}, "k")
        assert wings(*push).status == 1
        assert client.topic(new_topic_id).partition_key == "k"


def test_a_file_of_another_encoding_is_pushed_and_its_lines_are_named(
    wings: Wings, new_topic_id: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes('prénom;n\n"a\nb";1\nZoé;2\n'.encode("utf-16"))
    push = ("push", new_topic_id, path, "--delimiter", ";")
    plain = wings(*push, "--create")
    assert plain.status == 1
    assert "the file is UTF-16: give its encoding, like --encoding utf-16" in plain.err
    assert wings(*push, "--create", "--encoding", "utf-16").status == 0
    fetched = wings("fetch", new_topic_id, "--offset", 0, "--format", "json")
    assert json.loads(fetched.out) == [
        {"prénom": "a\nb", "n": 1},
        {"prénom": "Zoé", "n": 2},
    ]
    path.write_bytes('prénom;n\n"a\nb";1\nZoé;x\n'.encode("utf-16"))
    assert ":4: column 'n': 'x'" in wings(*push, "--encoding", "utf-16").err
    assert "not ascii, near byte" in wings(*push, "--encoding", "ascii").err
    for wrong in ("klingon", "hex"):
        assert wings(*push, "--encoding", wrong).status == 2
    (tmp_path / "rows.jsonl").write_text("{}")
    assert wings("push", new_topic_id, tmp_path / "rows.jsonl", "--encoding", "ascii").status == 2


def test_a_bad_row_keeps_what_came_before_only_where_that_is_asked_for(
    wings: Wings,
    server: RunningServer,
    new_topic_id: str,
    tmp_path: Path,
    read_sizes: ReadSizes,
) -> None:
    read_sizes(block=16_000)
    path = tmp_path / "rows.csv"
    values = [str(index) for index in range(10_000)]
    values[9_000] = "many"
    path.write_text("a\n" + "\n".join(values) + "\n")
    wings("topic", "create", new_topic_id, "--field", "a:int64")
    whole = wings("push", new_topic_id, path)
    problem = ":9002: column 'a': 'many' is not a value of type int64"
    assert (whole.status, whole.out) == (1, "")
    assert f"{problem}; nothing was pushed" in whole.err
    result = wings("push", new_topic_id, path, "--partial")
    assert (result.status, result.out) == (1, "")
    assert f"{problem}; the first " in result.err
    with wings_client.connect(server.flight) as client:
        (state,) = client.partitions(new_topic_id)
    assert 0 < state.next_offset < 9_000
    assert f"the first {state.next_offset:,} rows are committed" in result.err


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (['{"k": "a", "v": 1}', '{"v": 2}'], ":2: column 'k': a row without a value"),
        (['{"k": "a", "v": 1}', '{"k": "b"}'], ":2: column 'v'"),
        (['{"k": "a", "v": 1, "x": 1}'], ":1: "),
        (['{"k": "a", "v": 1}', "{"], ":2: "),
    ],
)
def test_a_row_that_a_server_would_refuse_is_named(
    wings: Wings, new_topic_id: str, tmp_path: Path, lines: list[str], problem: str
) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    fields = ("--field", "k:string", "--field", "v:int64 not null", "--partition-key", "k")
    wings("topic", "create", new_topic_id, *fields)
    result = wings("push", new_topic_id, tmp_path / "rows.jsonl")
    assert result.status == 1
    assert problem in result.err
    assert result.err.endswith("; nothing was pushed\n")


def test_types_that_the_first_rows_gave_are_told_from_those_that_were_set(
    wings: Wings, new_topic_id: str, tmp_path: Path, read_sizes: ReadSizes
) -> None:
    read_sizes(head=1_000)
    path = tmp_path / "rows.csv.gz"  # It is not sampled but in its first rows.
    path.write_bytes(gzip.compress(b"zip\n" + b"100010001000100\n" * 1_200 + b"SW1A\n", 1))
    inferred = wings("push", new_topic_id, path, "--create")
    assert inferred.status == 1
    assert ":1202: column 'zip': 'SW1A'" in inferred.err
    assert "--field zip:TYPE" in inferred.err
    wings("topic", "delete", new_topic_id, "--yes")
    pushed = wings("push", new_topic_id, path, "--create", "--field", "zip:string")
    assert pushed.out.startswith("1,201 rows pushed")


def test_push_refuses_what_it_cannot_read(wings: Wings, topic: str, tmp_path: Path) -> None:
    assert wings("push", topic, tmp_path / "none.csv").status == 2
    (tmp_path / "rows.parquet").write_bytes(b"not parquet at all")
    result = wings("push", topic, tmp_path / "rows.parquet")
    assert result.status == 1
    assert result.err.count("\n") == 1
    assert wings("push", topic, tmp_path / "rows.parquet", "--partition-key", "a").status == 2


def test_streams_come_from_standard_input(server: RunningServer, new_topic_id: str) -> None:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, flights().schema) as writer:
        writer.write_table(flights())
    arguments = ("push", new_topic_id, "-", "--create", "--partition-key", "origin")
    for data, more in (
        (sink.getvalue(), ()),
        (b'{"origin": "SFO", "delay (min)": 1}\n' * 3, ()),
        (b"origin,delay (min)\nSFO,2\n", ("--format", "csv")),
    ):
        with start(server, *arguments, *more, stdin=subprocess.PIPE) as child:
            _, err = child.communicate(data, timeout=150)
        assert child.returncode == 0, err
    with wings_client.connect(server.flight) as client:
        offsets = {state.partition: state.next_offset for state in client.partitions(new_topic_id)}
    assert offsets == {"JFK": 5, "LAX": 5, "SFO": 4}


def test_ctrl_c_stops_a_push_and_says_what_is_committed(
    server: RunningServer, new_topic_id: str
) -> None:
    with wings_client.connect(server.flight) as client:
        client.create_topic(new_topic_id, {"a": "int64"})
        with start(server, "push", new_topic_id, "-", stdin=subprocess.PIPE) as child:
            assert child.stdin is not None
            child.stdin.write(b'{"a": 1}\n' * 5)
            child.stdin.flush()
            # Committed while the pipe stays open: a pipe's rows are pushed as they come.
            assert client.fetch(new_topic_id, offset=0, min_messages=5, timeout=150).num_rows == 5
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=150)
    assert (child.returncode, out) == (130, b"")
    assert err == b"wings: stopped; the first 5 rows are committed, and nothing after them\n"


def test_ctrl_c_at_the_end_of_a_push_waits_for_the_answers(
    server: RunningServer, new_topic_id: str
) -> None:
    with (
        breakable(server.flight) as proxy,
        wings_client.connect(server.flight) as client,
    ):
        client.create_topic(new_topic_id, {"a": "int64"})
        arguments = ("push", new_topic_id, "-", "--format", "jsonl", "--endpoint", proxy.endpoint)
        with start(server, *arguments, stdin=subprocess.PIPE) as child, killed_on_failure(child):
            assert child.stdin is not None
            child.stdin.write(b'{"a": 1}\n' * 5)
            child.stdin.flush()
            assert client.fetch(new_topic_id, offset=0, min_messages=5, timeout=150).num_rows == 5
            proxy.stall_answers()
            child.stdin.write(b'{"a": 1}\n' * 5)
            child.stdin.close()
            assert client.fetch(new_topic_id, offset=5, min_messages=5, timeout=150).num_rows == 5
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.2)  # For the answers, as all is sent.
            child.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.5)
            proxy.go_on()
            assert child.stderr is not None
            err = child.stderr.read()
    assert child.returncode == 130
    assert err == b"wings: stopped; the first 10 rows are committed, and nothing after them\n"


def test_a_push_that_loses_its_server_says_what_may_be_committed(
    wings: Wings,
    server: RunningServer,
    new_topic_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = Retry(delay_max=0.05, reconnect_seconds=0.3)
    monkeypatch.setattr("wings_client.cli.endpoint.Retry", lambda: quick)
    path = tmp_path / "rows.jsonl"
    os.mkfifo(path)
    with (
        breakable(server.flight) as proxy,
        wings_client.connect(server.flight) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.create_topic(new_topic_id, {"a": "int64"})

        def break_midway() -> None:
            with path.open("wb", buffering=0) as fifo:
                fifo.write(b'{"a": 1}\n' * 20)
                client.fetch(new_topic_id, offset=0, min_messages=20, timeout=150)
                proxy.stall_answers()
                fifo.write(b'{"a": 1}\n' * 30)
            client.fetch(new_topic_id, offset=20, min_messages=30, timeout=150)
            proxy.stop_listening()

        breaking = pool.submit(break_midway)
        result = wings("push", new_topic_id, path, endpoint=proxy.endpoint)
        breaking.result()
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"wings: no server answers at {proxy.endpoint}: start one")
    told = re.search(
        r"; (?:the first 20 rows are committed, and )?"
        r"up to (\d+) (?:further )?rows may be committed$",
        result.err.rstrip(),
    )
    assert told is not None, result.err
    # The first answer may have come before answers were held up.
    assert int(told[1]) == (30 if "the first 20" in result.err else 50)


@pytest.mark.parametrize(
    ("name", "rows", "key"),
    [("flights-20k.json", 20_000, "origin"), ("flights-200k.arrow", 200_000, "")],
)
def test_real_flights_go_in(
    wings: Wings, new_topic_id: str, name: str, rows: int, key: str
) -> None:
    if not (DATA / name).exists():
        pytest.skip("the real data is not here")
    options = ("--partition-key", key) if key else ()
    pushed = wings("push", new_topic_id, DATA / name, "--create", *options)
    assert pushed.out.startswith(f"{rows:,} rows pushed")


# Tail and consume.


def test_tail_shows_all_partitions_from_where_it_is_told(wings: Wings, topic: str) -> None:
    quiet = ("--timeout", 300)
    everything = wings("tail", topic, "--from", "earliest", "--format", "json", *quiet)
    delays = [json.loads(line)["delay (min)"] for line in everything.out.splitlines()]
    assert sorted(delays) == list(range(10))
    assert wings("tail", topic, *quiet).out == ""
    one = wings("tail", topic, "--partition", "LAX", "--from", 3, *quiet).out.splitlines()
    assert one == [
        "__offset │ origin │ delay (min)",
        "─────────┼────────┼────────────",
        "       3 │ LAX    │           7",
        "       4 │ LAX    │           9",
    ]
    since = wings("tail", topic, "--from", "2020-01-01T00:00:00Z", "--format", "csv", *quiet)
    assert len(since.out.splitlines()) == 11


@pytest.mark.parametrize(
    "read",
    [
        ("fetch", "--timeout", "2ms"), ("tail", "--timeout", "0.3s"),
        ("gather", "--kind", "scan", "--timeout", "1m"), ("export", "-"),
    ],
)  # fmt: skip
def test_every_read_begins_where_from_says(wings: Wings, topic: str, read: Sequence[str]) -> None:
    command, *options = read

    def delays(*more: object) -> list[int]:
        out = wings(command, topic, *options, "--format", "jsonl", *more).out
        return sorted(json.loads(line)["delay (min)"] for line in out.splitlines())

    lax = delays("--from", "earliest", "--partition", "LAX")
    assert delays("--from", -2, "--partition", "LAX") == lax[-2:]
    assert delays("--from", -100, "--partition", "LAX") == lax
    assert delays("--from", 3, "--partition", "LAX") == lax[3:]
    assert delays("--from", "2020-01-01T00:00:00Z", "--partition", "LAX") == lax
    jfk = delays("--from", "earliest", "--partition", "JFK")
    assert delays("--from", -2) == sorted([*lax[-2:], *jfk[-2:]])


def test_consumers_namespaces_and_nodes_are_listed(
    wings: Wings, topic: str, server: RunningServer
) -> None:
    name = f"reader-{topic}"
    with wings_client.connect(server.flight) as client:
        client.commit_offsets(name, topic, {"JFK": 2, "LAX": 4})
    (line,) = [each for each in wings("consumer", "list").out.splitlines() if name in each]
    assert [each.strip() for each in line.split("│")][:3] == [name, topic, "4"]
    *table, summary = wings("consumer", "describe", name).out.splitlines()
    rows = [[each.strip() for each in line.split("│")][1:5] for line in table[2:]]
    assert rows == [["JFK", "2", "5", "3"], ["LAX", "4", "5", "1"]]
    assert summary == "4 messages behind in 2 partitions"
    missing = wings("consumer", "describe", "nobody")
    assert (missing.status, missing.err) == (1, "wings: no consumer nobody has committed offsets\n")
    would = wings("consumer", "delete", name, "--topic", topic, "--dry-run")
    assert would.out == f"would delete the offsets of {name} in 2 partitions\n"
    deleted = wings("consumer", "delete", name, "--yes")
    assert deleted.out == f"{name} has no offsets in 2 partitions any more\n"
    assert wings("consumer", "delete", name, "--yes").status == 1
    assert "default " in wings("namespace", "list").out
    (shown,) = wings("node", "list").out.splitlines()[2:]
    assert shown.startswith(server.flight)
    (state,) = json.loads(wings("node", "describe", server.flight, "--format", "json").out)
    assert (state["state"], state["version"]) == ("answers", version("wings-flight"))
    assert state["memory_MiB"] > 0
    unknown = wings("node", "describe", "grpc://nowhere:1")
    assert (unknown.status, "no node grpc://nowhere:1" in unknown.err) == (1, True)


def test_a_namespace_is_created_described_and_deleted(wings: Wings, topic: str) -> None:
    name = f"n-{topic}"
    full = f"tenants/default/namespaces/{name}"
    assert wings("namespace", "create", name).out == f"created {name}: {full}\n"
    assert name in wings("namespace", "list").out
    inside = f"{full}/topics/{topic}"
    assert wings("topic", "create", inside, "--field", "n:int64").status == 0
    (found,) = json.loads(wings("namespace", "describe", name, "--format", "json").out)
    counts = {"topics": 1, "partitions": 1, "messages": 0, "bytes": 0}
    assert found == {"namespace": name, **counts}
    refused = wings("namespace", "delete", name, "--dry-run")
    assert (refused.status, "has 1 topic" in refused.err) == (1, True)
    assert wings("topic", "delete", inside, "--yes").status == 0
    assert wings("namespace", "delete", name, "--dry-run").out.startswith("would delete")
    assert wings("namespace", "delete", name, "--yes").out == f"deleted {name}\n"
    assert wings("namespace", "describe", name).status == 1


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(wings: Wings, topic: str) -> None:
    assert wings("share", "create", "g", topic, "--dlq", f"{topic}-dead").status == 0
    for arguments, said in (
        (("share", "seek", "g", topic, "--to", "earliest"), f"would move g of {topic} to earliest"),
        (("share", "purge", "g", topic), f"would drop the unfinished messages of g of {topic}"),
        (("share", "delete", "g", topic), f"would delete g of {topic}, 0 messages behind"),
        (
            ("share", "dlq", "redrive", f"{topic}-dead", "--filter", "reason = 'no'"),
            f"would send back at most 0 dead letters of {topic}-dead, those with reason = 'no'",
        ),
        (("topic", "delete", topic), f"would delete {topic} with 10 messages"),
    ):
        assert wings(*arguments, "--dry-run") == (0, f"{said}\n", "")
    missing = wings("share", "seek", "nobody", topic, "--to", "latest", "--dry-run")
    assert (missing.status, "nobody" in missing.err) == (1, True)
    unknown = wings("token", "revoke", "nobody", "--dry-run")
    assert unknown == (1, "", "wings: there is no token 'nobody'\n")
    assert wings("share", "describe", "g", topic).out.splitlines()[-1].startswith("0 messages")


def test_tail_survives_a_restart_and_sees_new_partitions(tmp_path: Path) -> None:
    with (
        held_address() as address,
        served_at(tmp_path / "data", address) as first,
        wings_client.connect(first.flight) as client,
    ):
        client.create_topic("flights", flights().schema, "origin")
        client.push("flights", flights(2))
        arguments = ("tail", "flights", "--from", "earliest", "--format", "json")
        with start(first, *arguments) as child, killed_on_failure(child):
            out = child.stdout
            assert out is not None
            assert sorted(line_of(out, "origin") for _ in range(2)) == ["JFK", "LAX"]
            client.push("flights", {"origin": ["SFO"], "delay (min)": [1]})
            assert line_of(out, "origin") == "SFO"
            assert first.terminate() == 0
            with served_at(tmp_path / "data", address):
                client.push("flights", {"origin": ["SFO", "OAK"], "delay (min)": [2, 3]})
                assert sorted(line_of(out, "delay (min)") for _ in range(2)) == [2, 3]
                child.send_signal(signal.SIGINT)
                rest, err = child.communicate(timeout=150)
    assert (child.returncode, rest, err) == (130, b"", b"stopped after 5 messages\n")


def line_of(out: IO[bytes], name: str) -> Any:
    return json.loads(out.readline())[name]


def served_at(data_dir: Path, address: str) -> AbstractContextManager[ServerProcess]:
    return server_process(data_dir, flags=("--flight", address))


def test_a_reader_that_goes_away_ends_the_tail_quietly(server: RunningServer, topic: str) -> None:
    with start(server, "tail", topic, "--from", "earliest", "--format", "json") as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
        with wings_client.connect(server.flight) as client:
            while child.poll() is None:
                client.push(topic, flights(2))
        assert child.stderr is not None
        assert child.stderr.read() == b""


def test_consume_goes_on_where_it_was(wings: Wings, server: RunningServer, topic: str) -> None:
    consume = ("consume", f"reader-{topic}", topic, "--timeout", 500, "--format", "json")
    first = wings(*consume)
    assert first.status == 0
    assert len(first.out.splitlines()) == 10
    assert first.err == f"reader-{topic} has read nothing of it yet, and begins at earliest\n"
    with wings_client.connect(server.flight) as client:
        client.push(topic, {"origin": ["JFK"], "delay (min)": [99]})
    second = wings(*consume)
    assert second.err == f"reader-{topic} resumes: JFK at 5, LAX at 5\n"
    assert [json.loads(line)["delay (min)"] for line in second.out.splitlines()] == [99]
    assert wings(*consume, "--from", 7).status == 2


def test_consume_skips_what_is_gone_where_it_is_told_to(
    wings: Wings, server: RunningServer, trim: Trim, topic: str
) -> None:
    # `trim` is before `topic`: a drain would else join what that pushes with the push below.
    with wings_client.connect(server.flight) as client:
        found = client.topic(topic)
        client.commit_offsets("late", found, {"JFK": 1, "LAX": 5})
        client.push(topic, {"origin": ["JFK", "LAX"], "delay (min)": [98, 99]})
    trim(found, 5, Partition('"JFK"'))
    consume = ("consume", "late", topic, "--timeout", 500, "--format", "json")
    refused = wings(*consume)
    assert (refused.status, refused.out) == (1, "")
    assert 'offset 1 of partition "JFK" is below the log\'s start, 5' in refused.err
    skipped = wings(*consume, "--on-data-loss", "skip")
    assert skipped.status == 0
    assert [json.loads(line)["delay (min)"] for line in skipped.out.splitlines()] == [98, 99]


def test_rows_that_parquet_cannot_hold_are_refused_in_a_line(
    wings: Wings, new_topic_id: str, tmp_path: Path
) -> None:
    field = ("--field", "i:month_day_nano_interval")
    assert wings("topic", "create", new_topic_id, *field).status == 0
    for command in (
        ("sql", "--format", "parquet", f'SELECT i FROM "{new_topic_id}"'),
        ("export", new_topic_id, tmp_path / "i.parquet"),
    ):
        refused = wings(*command)
        assert refused.status == 1
        assert refused.err.startswith("wings: Parquet cannot hold these columns: ")
        assert refused.err.count("\n") == 1


# Bench.


def test_bench_measures_and_leaves_nothing_behind(wings: Wings, server: RunningServer) -> None:
    with wings_client.connect(server.flight) as client:
        before = [topic.name for topic in client.topics()]
        result = wings("bench", "--mebibytes", 2, "--messages", 3)
        assert [topic.name for topic in client.topics()] == before
    assert result.status == 0
    for figure in ("push, 1 MiB batches", "scan", "fetch of one message", "push to delivery"):
        assert figure in result.out


@each(
    "subcommand",
    ["topic create", "topic list", "topic describe", "topic delete", "push", "fetch", "tail",
     "consume", "bench", "gather"],
)  # fmt: skip
def test_every_command_teaches_by_an_example(wings: Wings, subcommand: str) -> None:
    result = wings(*subcommand.split(), "--help")
    assert result.status == 0
    assert f"$ wings {subcommand}" in result.out


# Gather.


def test_gather_asks_all_partitions_and_says_why_it_ended(wings: Wings, topic: str) -> None:
    result = wings("gather", topic, "--kind", "scan", "--format", "json")
    assert result.status == 0
    delays = [json.loads(line)["delay (min)"] for line in result.out.splitlines()]
    assert sorted(delays) == list(range(10))
    assert result.err.startswith("complete: 1 reply, 10 messages of 1 source in ")
    one = wings("gather", topic, "--partition", "LAX", "--offset", 4)
    assert one.out.splitlines()[2:] == ["LAX    │           9"]
    assert one.err.startswith("complete: 1 reply, 1 message of 1 source in ")


def test_gather_ends_as_it_is_told(wings: Wings, topic: str) -> None:
    beyond = ("gather", topic, "--partition", "JFK", "--partition", "LAX", "--offset", 5)
    assert wings(*beyond, "--timeout", 200).err.startswith("timeout: 0 replies, 0 messages of 1 s")
    first = wings("gather", topic, "--max-replies", 1)
    assert first.err.startswith("max_messages: 1 reply, 10 messages of 1 source")
    follow = ("gather", topic, "--kind", "follow")
    stalled = wings(*follow, "--stall-timeout", 300, "--sentinel", "empty")
    assert (stalled.status, stalled.err[:16]) == (0, "stall: 1 reply, ")
    assert wings("gather", topic, "--timeout", 0).status == 2
    assert wings("gather", topic, "--max-replies", 0).status == 2


def test_a_column_that_is_true_ends_a_gather(
    wings: Wings, server: RunningServer, new_topic_id: str
) -> None:
    with wings_client.connect(server.flight) as client:
        client.create_topic(new_topic_id, {"n": "int64", "last": "bool"})
        client.push(new_topic_id, {"n": [1, 2], "last": [False, None]})
        client.push(new_topic_id, {"n": [3, 4], "last": [False, True]})
    follow = ("gather", new_topic_id, "--kind", "follow", "--timeout", 30_000, "--format", "json")
    ended = wings(*follow, "--sentinel", "last")
    assert ended.status == 0
    assert [json.loads(line)["n"] for line in ended.out.splitlines()] == [1, 2, 3, 4]
    assert ended.err.startswith("sentinel: ")
    for wrong in ("n", "full"):
        refused = wings(*follow, "--sentinel", wrong)
        assert (refused.status, refused.out) == (2, "")
        assert f"has no column {wrong} of type bool" in refused.err
    assert wings(*follow, "--sentinel", "last", "--columns", "n").status == 2


def test_gather_asks_several_topics(wings: Wings, topic: str) -> None:
    wings("topic", "create", f"{topic}-more", "--field", "n:int64")
    both = ("gather", topic, f"{topic}-more", "--kind", "scan")
    assert wings(*both, "--format", "json").err.startswith("complete: 1 reply, 10 messages of 2")
    assert wings(*both, "--format", "arrow").status == 2


def test_gather_tells_what_failed(wings: Wings, server: RunningServer, topic: str) -> None:
    both = ("gather", topic, "--endpoint", server.flight, "--endpoint", "grpc://127.0.0.1:1")
    gone_on = wings(*both, "--on-error", "continue", "--format", "json")
    assert (gone_on.status, gone_on.out.count("\n")) == (1, 10)
    *failures, last = gone_on.err.splitlines()
    at = "grpc://127.0.0.1:1"
    assert failures == [f"{topic} at {at} failed: no server answers at {at}"]
    assert last.startswith("complete: 1 reply, 10 messages of 2 sources")
    # Of a fetch that waits, so that the failure is what ends it.
    ended = wings(*both, "--offset", 5)
    assert ended.status == 1
    assert "disconnected: 0 replies" in ended.err
    refused = wings("gather", topic, "--filter", "1 +")
    assert refused.status == 1
    assert "server_error: 0 replies" in refused.err


def test_ctrl_c_cancels_a_gather(server: RunningServer, topic: str) -> None:
    arguments = ("gather", topic, "--kind", "follow", "--format", "json")
    with start(server, *arguments) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(10)]
        server.wait_for_calls(1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=150)
    assert (child.returncode, out) == (130, b"")
    assert sorted(json.loads(line)["delay (min)"] for line in lines) == list(range(10))
    assert err.startswith(b"cancelled: 1 reply, 10 messages of 1 source in ")
    server.wait_for_calls(0)


def test_gather_counts_for_each_source_on_a_terminal(server: RunningServer, topic: str) -> None:
    terminal, given = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "wings_client.cli", "gather", topic, "--kind", "scan"],
        env={**os.environ, "WINGS_ENDPOINT": server.flight, "TERM": "xterm", "COLUMNS": "80"},
        stdout=subprocess.DEVNULL,
        stderr=given,
    )
    os.close(given)
    shown = b""
    with contextlib.suppress(OSError):  # How a terminal ends on Linux.
        while part := os.read(terminal, 65_536):
            shown += part
    os.close(terminal)
    assert child.wait(50) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(rf"{topic} +1 replies +10 messages", text)
    assert text.rstrip().splitlines()[-1].startswith("complete: 1 reply, 10 messages")


# Share groups.


@pytest.fixture
def shared(wings: Wings, new_topic_id: str) -> str:
    """A topic of three messages with the group `billing`, which has dead letters."""
    assert wings("topic", "create", new_topic_id, "--field", "n:int64").status == 0
    with wings_client.connect(os.environ["WINGS_ENDPOINT"]) as client:
        client.push(new_topic_id, {"n": [0, 1, 2]})
    group = ("billing", new_topic_id)
    options = (
        "--from",
        "earliest",
        "--delivery-limit",
        2,
        "--lock",
        60,
        "--dlq",
        f"{new_topic_id}-dead",
    )
    created = wings("share", "create", *group, *options)
    assert created.status == 0
    assert created.out == (
        f"billing of {new_topic_id}: 60 s lock, 2 deliveries, dead letters to "
        f"{new_topic_id}-dead, 3 messages behind\n"
    )
    return new_topic_id


def test_share_groups_are_managed(wings: Wings, shared: str) -> None:
    listed = wings("share", "list", shared)
    assert re.search(
        rf"^{shared} +│ billing +│ +60 s │ +2 │ {shared}-dead$", listed.out, re.MULTILINE
    )
    assert "delivery_limit: 2" in wings("share", "describe", "billing", shared).out
    altered = wings("share", "alter", "billing", shared, "--delivery-limit", 7)
    assert "60 s lock, 7 deliveries" in altered.out
    assert wings("share", "alter", "billing", shared).status == 2
    again = wings("share", "create", "billing", shared)
    assert (again.status, "already" in again.err) == (1, True)
    assert wings("share", "create", "billing", shared, "--if-not-exists").status == 0
    assert wings("share", "create", "other", shared, "--from", "7").status == 2
    assert wings("share", "create", "timed", shared, "--from", "2026-11-20T12:00:00Z").status == 0
    assert wings("share", "delete", "billing", shared).status == 2
    deleted = wings("share", "delete", "billing", shared, "--yes")
    assert deleted.out == f"billing of {shared} is deleted\n"
    gone = wings("share", "describe", "billing", shared)
    assert (gone.status, "has no group 'billing'" in gone.err) == (1, True)


def test_share_groups_are_moved_and_purged(wings: Wings, shared: str) -> None:
    moved = wings("share", "seek", "billing", shared, "--to", 2, "--yes")
    assert moved.out.endswith(" 1 message behind\n")
    assert wings("share", "seek", "billing", shared, "--to", 9, "-y").status == 1
    assert wings("share", "seek", "billing", shared, "--to", "earliest", "-y").status == 0
    assert wings("share", "purge", "billing", shared).status == 2
    assert "0 of them held by 0 members" in wings("share", "members", "billing", shared).out
    purged = wings("share", "purge", "billing", shared, "--yes")
    assert purged.out == "3 messages are dropped\n"


def test_share_consume_shows_messages_and_accepts_them(wings: Wings, shared: str) -> None:
    arguments = ("share", "consume", "billing", shared, "--format", "json", "--timeout", 300)
    taken = wings(*arguments)
    assert taken.status == 0
    assert [json.loads(line) for line in taken.out.splitlines()] == [{"n": n} for n in range(3)]
    assert wings(*arguments).out == ""
    assert (
        "0 messages behind, 0 of them in flight"
        in wings("share", "describe", "billing", shared).out
    )


def test_dead_letters_are_listed_shown_and_sent_back(wings: Wings, shared: str) -> None:
    dead = f"{shared}-dead"
    with (
        wings_client.connect(os.environ["WINGS_ENDPOINT"]) as client,
        client.share_consumer("billing", shared, timeout=0) as consumer,
    ):
        (delivery,) = consumer
        consumer.reject(delivery, rows=[1], reason="bad")
        consumer.accept(delivery, rows=[0, 2])
    listed = wings("share", "dlq", "list").out
    assert re.search(rf"^{dead} +│ billi.*{shared} +│ +1$", listed, re.MULTILINE)
    shown = wings("share", "dlq", "show", dead, "--filter", "error = 'bad'", "--format", "json")
    (letter,) = json.loads(shown.out)
    assert (letter["source_offset"], letter["reason"]) == (1, "rejected")
    messages = wings("share", "dlq", "show", dead, "--messages", "--format", "json")
    assert json.loads(messages.out) == [{"n": 1}]
    assert wings("share", "dlq", "show", shared).status == 1
    sent = wings("share", "dlq", "redrive", dead, "--yes")
    assert (sent.status, sent.out) == (0, "1 dead letters sent back\n")
    again = wings("share", "dlq", "redrive", dead, "-y", "--filter", "reason = 'rejected'")
    assert again.out == "0 dead letters sent back, 1 were sent back before\n"


def test_a_group_is_made_in_order_and_with_times_and_altered(
    wings: Wings, new_topic_id: str
) -> None:
    fields = ("--field", "k:string", "--field", "n:int64", "--field", "at:timestamp[us, tz=UTC]")
    made = ("topic", "create", new_topic_id, *fields, "--partition-key", "k")
    assert wings(*made).status == 0
    group = ("billing", new_topic_id)
    options = ("--ordering", "partition", "--deliver-at", "at", "--in-flight", 7, "--no-payload")
    dead = f"{new_topic_id}-dead"
    created = wings("share", "create", *group, *options, "--dlq", dead, "--from", "earliest")
    assert created.status == 0, created.err
    described = wings("share", "describe", *group).out
    for line in ("ordering: partition", "deliver_at_column: at", "in_flight_max: 7"):
        assert line in described
    assert wings("share", "alter", *group, "--deliver-at", "n").status == 1
    assert wings("share", "alter", *group, "--ordering", "column").status == 2
    assert wings("share", "alter", *group, "--ordering", "none").status == 0
    assert "ordering: none" in wings("share", "describe", *group).out

    with wings_client.connect(os.environ["WINGS_ENDPOINT"]) as client:
        client.push(new_topic_id, {"k": ["a", "a", "b"], "n": [1, 2, 3], "at": [None] * 3})
        moved = wings("share", "seek", *group, "--to", 1, "--partition", "a", "--yes")
        assert moved.status == 0, moved.err
        lags = {each.partition: each.lag for each in client.share_group(*group).partitions}
        assert lags == {"a": 1, "b": 1}
        assert wings("share", "purge", *group, "--partition", "b", "--yes").status == 0
        lags = {each.partition: each.lag for each in client.share_group(*group).partitions}
        assert lags == {"a": 1, "b": 0}


def test_dead_letters_are_sent_to_another_topic_at_a_rate(wings: Wings, shared: str) -> None:
    dead, repaired = f"{shared}-dead", f"{shared}-repaired"
    with wings_client.connect(os.environ["WINGS_ENDPOINT"]) as client:
        client.create_topic(repaired, client.topic(shared).schema)
        with client.share_consumer("billing", shared, timeout=0) as consumer:
            (delivery,) = consumer
            consumer.reject(delivery)
        redrive = ("share", "dlq", "redrive", dead, "--yes")
        assert wings(*redrive, "--to", f"{shared}-gone").status == 1
        assert wings(*redrive, "--rate", 0).status == 1
        sent = wings(*redrive, "--to", repaired, "--rate", 1_000)
        assert (sent.status, sent.out) == (0, "3 dead letters sent back\n")
        rows = client.fetch(repaired, offset=0).table
        assert rows.column("n").to_pylist() == [0, 1, 2]


def test_a_topic_is_configured_key_by_key(wings: Wings, new_topic_id: str) -> None:
    made = ("topic", "create", new_topic_id, "--field", "n:int64")
    assert wings(*made, "--set", "retention_on_acceptance").status == 2
    assert wings(*made, "--set", "retention_ms=soon").status == 1
    assert wings(*made, "--set", "retention_ms=so on").status == 2
    assert wings(*made, "--set", "retention_ms=[1]").status == 2
    assert wings(*made, "--set", "retention=1").status == 1
    assert wings(*made, "--set", "retention_on_acceptance=true").status == 0
    described = ("topic", "describe", new_topic_id)
    assert "retention_on_acceptance: true\n" in wings(*described).out
    alter = ("topic", "alter", new_topic_id, "--set")
    altered = wings(*alter, "retention_ms=5", "--set", "segment_bytes=7")
    assert altered.out == "retention_ms: 5\nsegment_bytes: 7\n"
    altered = wings(*alter, "retention_on_acceptance=false", "--set", "retention_ms=null")
    assert altered.out == "retention_on_acceptance: false\nretention_ms: null\n"
    out = wings(*described).out
    assert "segment_bytes: 7" in out
    assert "retention" not in out
    assert wings(*alter, "retention_ms=0").status == 1
    assert wings(*alter, "segment_format=parquet").out == 'segment_format: "parquet"\n'
    off = wings(*alter, "table=null")
    assert (off.status, off.out) == (0, "table: null\n")
    assert "is dropped from the catalog by the next maintenance" in off.err


def test_a_shorter_retention_that_deletes_messages_is_asked_for(
    wings: Wings, server: RunningServer, new_topic_id: str
) -> None:
    alter = ("topic", "alter", new_topic_id, "--set")
    with wings_client.connect(server.flight) as client:
        topic = client.create_topic(new_topic_id, {"n": "int64"})
        assert wings(*alter, "retention_ms=7200000").status == 0
        for hours in (1, 1, 0):
            at = datetime.now(UTC) - timedelta(hours=hours)
            client.push(topic, {"n": [1, 2]}, timestamp=at)
        refused = wings(*alter, "retention_ms=600000")
        assert refused.status == 2
        assert "give --yes to change" in refused.error
        would = wings(*alter, "retention_ms=600000", "--dry-run").out
        # Their bytes change as they are drained.
        asked = f"would change {new_topic_id} and delete "
        assert re.fullmatch(rf"{asked}about 4 messages of \d+ bytes\n", would)
        would = wings(*alter, "retention_bytes=1", "--dry-run").out
        assert re.fullmatch(rf"{asked}about 6 messages of \d+ bytes\n", would)
        would = wings(*alter, "retention_ms=7000000", "--dry-run").out
        assert would == f"{asked}no message\n"
        for bad in ("retention_ms=true", "retention=1"):  # Before anything is asked.
            refused = wings(*alter, "retention_bytes=1", "--set", bad, "--dry-run")
            assert (refused.status, refused.out) == (1, "")
        assert client.topic(topic).config["retention_ms"] == 7_200_000
        assert wings(*alter, "retention_ms=null").status == 0
        for longest in (10**14, 2**63 - 1):
            assert wings(*alter, f"retention_ms={longest}").status == 0
            assert wings(*alter, "retention_ms=null").status == 0
        assert wings(*alter, "retention_ms=600000", "--yes").status == 0
        assert wings(*alter, "retention_ms=7200000").status == 0
        accepted = (*alter, "retention_on_acceptance=true")
        assert wings(*accepted, "--dry-run").out == f"{asked}no message\n"
        client.create_share_group("billing", topic)
        assert wings(*accepted).status == 2
        finished = "the messages that all its share groups have finished"
        assert wings(*accepted, "--dry-run").out == f"{asked}{finished}\n"
        assert wings(*accepted, "--yes").status == 0
        assert wings(*accepted).status == 0


def test_a_schema_grows_by_alter_and_by_what_a_file_has_more(
    wings: Wings, new_topic_id: str, tmp_path: Path
) -> None:
    first = tmp_path / "first.csv"
    first.write_text("k,n\na,1\n")
    push = ("push", new_topic_id)
    assert (
        wings("topic", "create", new_topic_id, "--field", "k:string", "--field", "n:int32").status
        == 0
    )
    assert wings(*push, first).status == 0
    altered = wings("topic", "alter", new_topic_id, "--add", "x:double", "--nullable", "n")
    assert altered.out.rstrip().endswith("(version 2)")
    assert wings("topic", "alter", new_topic_id, "--add", "x:double").out == altered.out
    assert wings("topic", "alter", new_topic_id).status == 2
    refused = wings("topic", "alter", new_topic_id, "--widen", "n:string")
    assert (refused.status, "cannot become string" in refused.err) == (1, True)
    assert "Schema version: 2" in wings("topic", "describe", new_topic_id).out
    assert wings(*push, first).status == 0  # Without the column that came later.
    more = tmp_path / "more.parquet"
    table = pa.table({"k": ["b"], "n": [1 << 40], "x": [0.5], "y": ["new"]})
    pyarrow.parquet.write_table(table, more)
    assert wings(*push, more).status == 1
    evolved = wings(*push, more, "--evolve")
    assert evolved.status == 0
    assert "has version 3 of its schema" in evolved.err
    assert "version" not in wings(*push, more, "--evolve").err
    fetched = wings("fetch", new_topic_id, "--offset", 0, "--format", "json")
    rows = json.loads(fetched.out)
    old = {"k": "a", "n": 1, "x": None, "y": None}
    new = {"k": "b", "n": 1 << 40, "x": 0.5, "y": "new"}
    assert rows == [old, old, new, new]
