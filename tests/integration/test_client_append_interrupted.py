"""Appended rows and Ctrl-C: whenever it comes, what a later flush says is durable is there."""

import subprocess
import sys
from typing import Any

import pytest
from fix_client import NewTopic
from forked_commands import FORKED

from wings_client import Client
from wings_server.testing import RunningServer

PROGRAM = f"""{FORKED}
import random, signal, sys, threading, time
import wings_client

interruptible = False

def interrupted(*_):
    if interruptible:
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupted)
client = wings_client.connect(sys.argv[1])
producer = client.producer(sys.argv[2], linger_ms=1)
stop = threading.Event()

def interrupt():
    while not stop.wait(random.uniform(0.001, 0.02)):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

thread = threading.Thread(target=interrupt, daemon=True)
thread.start()
end = time.monotonic() + 2
next_number = 0
while time.monotonic() < end or next_number < 100:
    try:
        interruptible = True
        producer.append({{"n": next_number}})
        next_number += 1
        if next_number % 50 == 0:
            producer.flush(60)
        interruptible = False
    except KeyboardInterrupt:
        interruptible = False
stop.set()
thread.join()
producer.close(60)
print(next_number)
"""


@pytest.mark.parametrize("connect", ["sync"], indirect=True)  # The program has a client itself.
def test_no_row_is_lost_by_ctrl_c(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.flight, topic.name],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    numbers: list[Any] = wings.scan(topic).read_all()["n"].to_pylist()
    # A row whose append was interrupted after it was added comes again: the program cannot tell.
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))
    assert max(numbers) in {int(done.stdout) - 1, int(done.stdout)}
