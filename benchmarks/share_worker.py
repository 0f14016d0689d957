"""A worker of a share group in a process of its own: takes messages and accepts them.

    python -m benchmarks.share_worker ADDRESS TOPIC MESSAGES SECONDS [AHEAD]

With AHEAD it waits for no acceptance, and has so many deliveries come ahead. Says `ready`, waits
for a line, and then says as JSON how many messages it accepted in how many seconds.
"""

import json
import sys
import time
from collections.abc import Iterator

import wings_client

TIMEOUT_SECONDS = 5.0

FLUSHED = 500
"""Deliveries after which all is waited for, so that what is counted was accepted."""


def work(accepted: Iterator[int], seconds: float) -> None:
    """Say `ready`, wait for a line, work until the time is up, and say what was done.

    Args:
        accepted: Takes and accepts messages; yields how many.
        seconds: After so many it ends.
    """
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    done, started = 0, time.perf_counter()
    for messages in accepted:
        done += messages
        if time.perf_counter() - started > seconds:
            break
    print(json.dumps([done, time.perf_counter() - started]), flush=True)  # noqa: T201


def _accept(consumer: wings_client.ShareConsumer, *, wait: bool) -> Iterator[int]:
    """Take and accept deliveries; yields how many messages of them are durable."""
    unflushed = list[int]()
    for delivery in consumer:
        consumer.accept(delivery, wait=wait)
        unflushed.append(len(delivery))
        if not wait and len(unflushed) < FLUSHED:
            continue
        if not wait:
            consumer.flush()
        yield sum(unflushed)
        unflushed.clear()


def main(address: str, topic: str, messages: int, seconds: float, ahead: int) -> None:
    """Work until the time is up."""
    with (
        wings_client.connect(address) as client,
        client.share_consumer(
            "workers", topic, max_messages=messages, prefetch=ahead, timeout=TIMEOUT_SECONDS
        ) as consumer,
    ):
        client.topic(topic)  # Connected before the time begins.
        work(_accept(consumer, wait=not ahead), seconds)


if __name__ == "__main__":
    address, topic, messages, seconds, *ahead = sys.argv[1:]
    main(address, topic, int(messages), float(seconds), int(ahead[0]) if ahead else 0)
