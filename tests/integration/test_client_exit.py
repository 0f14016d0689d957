"""The end of a program: what it left open ends with it, and nothing is lost without a word."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from breakable_proxy import BreakableProxy

import wings_client
from wings_server.testing import RunningServer

EXIT_SECONDS = 25.0
"""Far beyond what an exit takes, on a busy machine."""

EMBEDDING = """
import sys, time
import wings_client
from wings_server.testing import running_server

with running_server() as server, wings_client.connect(server.flight) as client:
    client.create_topic("t", {"n": "int64"})
    client.push("t", {"n": [1]})

left_open = running_server()
server = left_open.__enter__()
client = wings_client.connect(server.flight)
client.create_topic("t", {"n": "int64"})
client.create_share_group("g", "t", {"start": "earliest"})
client.push("t", {"n": [1]})
assert client.sql("select n from t").read_all().num_rows == 1
producer = client.producer("t", linger_ms=60_000)
producer.append({"n": 2})
follow = client.follow("t")
next(follow)
consumer = client.consumer("c", "t")
next(consumer)
members = client.share_consumer("g", "t")
members.accept(next(members))
print(time.monotonic())
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def test_a_program_that_embeds_a_server_ends_whatever_it_left_open() -> None:
    done = run(EMBEDDING)
    ended = time.monotonic()
    assert (done.returncode, done.stderr) == (0, "")
    assert ended - float(done.stdout) < EXIT_SECONDS


PRODUCER = """
import sys
import wings_client

producer = wings_client.connect(sys.argv[1]).producer(sys.argv[2], linger_ms=60_000)
producer.send({"n": [0]}).result()
for n in range(1, 11):
    producer.append({"n": n})
raise SystemExit(3)
"""


def test_rows_of_a_producer_that_was_left_open_are_sent_at_the_end(
    server: RunningServer, new_topic_id: str
) -> None:
    with wings_client.connect(server.flight) as client:
        client.create_topic(new_topic_id, {"n": "int64"})
        done = run(PRODUCER, server.flight, new_topic_id)
        assert (done.returncode, done.stderr) == (3, "")
        assert client.scan(new_topic_id).read_all()["n"].to_pylist() == list(range(11))


SILENT = """
import sys
import wings_client

client = wings_client.connect(sys.argv[1])
producers = [client.producer(sys.argv[2], linger_ms=60_000) for _ in range(3)]
for producer in producers:
    producer.send({"n": [0]}).result()
print("ready", flush=True)
sys.stdin.readline()
for n in range(10):
    producers[0].append({"n": n})
producers[1].send({"n": [1, 2, 3]})
"""


def test_rows_that_cannot_be_sent_at_the_end_are_counted_by_a_warning(
    server: RunningServer, proxy: BreakableProxy, new_topic_id: str
) -> None:
    with wings_client.connect(server.flight) as client:
        client.create_topic(new_topic_id, {"n": "int64"})
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", SILENT]
    with subprocess.Popen(
        [*command, proxy.endpoint, new_topic_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        proxy.stall()
        _, errors = child.communicate("\n", timeout=100)
    assert child.returncode == 0
    warnings = [line for line in errors.splitlines() if "ResourceWarning" in line]
    assert len(warnings) == 2, errors
    assert "10 rows of Producer" in warnings[0]
    assert "3 rows of Producer" in warnings[1]


LATE = """
import sys, threading
import wings_client

def late():
    threading.main_thread().join()
    with wings_client.connect(sys.argv[1]) as client:
        client.push(sys.argv[2], {"n": [1]})  # Of Python's values: pyarrow loads pandas for them.
        found = client.fetch(sys.argv[2], offset=0).table
        client.push(sys.argv[2], found)
        with client.producer(sys.argv[2]) as producer:
            producer.send(found)
        rows = client.fetch(sys.argv[2], offset=0, min_messages=3, timeout=60).num_rows
        batch = next(client.consumer("c", sys.argv[2]))
        print(rows, client.snapshot(sys.argv[2]).read_all().num_rows, len(batch.batch))

threading.Thread(target=late).start()
"""


def test_a_thread_connects_after_the_main_thread_has_ended(
    server: RunningServer, new_topic_id: str
) -> None:
    with wings_client.connect(server.flight) as client:
        client.create_topic(new_topic_id, {"n": "int64"})
    done = run(LATE, server.flight, new_topic_id)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 3 3\n", "")


CLOSING = """
import sys, threading, time
import wings_client


def ask(client, ready):
    ready.wait()
    try:
        while True:
            client.topics()
    except wings_client.WingsError as refusal:
        assert "closed" in str(refusal), refusal


for number in range(300):
    client, ready = wings_client.connect(sys.argv[1]), threading.Barrier(5)
    threads = [threading.Thread(target=ask, args=(client, ready)) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    time.sleep(number % 20 * 0.0002)
    client.close()
    for thread in threads:
        thread.join()
"""


def test_a_client_that_is_closed_while_threads_begin_calls_refuses_them(
    server: RunningServer,
) -> None:
    done = run(CLOSING, server.flight)
    assert (done.returncode, done.stderr) == (0, "")


MANY = """
import gc, os, sys
import wings_client

gc.disable()  # What a cycle keeps would stay.
with wings_client.connect(sys.argv[1]) as client:
    topic = client.create_topic(sys.argv[2], {"n": "int64"})
before = len(os.listdir("/proc/self/fd"))
for number in range(20):
    with wings_client.connect(sys.argv[1]) as client:
        client.push(topic, [{"n": number}])
        client.fetch(topic)
        try:
            client.fetch("missing")
        except wings_client.NotFound:
            pass
print(len(os.listdir("/proc/self/fd")) - before < 10)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted by /proc")
def test_a_client_that_is_closed_keeps_no_connection(
    server: RunningServer, new_topic_id: str
) -> None:
    done = run(MANY, server.flight, new_topic_id)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
