"""Extend: a task for each message, a few at a time."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from wings_core.queue.interfaces import Queue

THREADS_MAX = 16
"""Messages that are extended at once: a call to a queue far away takes tens of milliseconds."""


def extend_all(
    queue: Queue, receipts: Mapping[str, str], seconds: float
) -> tuple[dict[str, float | None], Exception | None]:
    """Hide messages for so long from now on; after a first failure, the rest is left as it is.

    Args:
        queue: Where they came from.
        receipts: By the messages' ids.
        seconds: For how long.

    Returns:
        The new deadlines by id, None where a message is lost; and what the first call failed with.
        A message that is not among them was not extended.
    """
    if not receipts:
        return {}, None
    found: dict[str, float | None] = {}
    problems: list[Exception] = []
    failed = threading.Event()

    def extend(message_id: str, receipt: str) -> None:
        if failed.is_set():
            return  # It would only wait for the same.
        try:
            found[message_id] = queue.extend(receipt, seconds)
        except Exception as error:  # noqa: BLE001 - Handed on.
            problems.append(error)
            failed.set()

    with ThreadPoolExecutor(min(THREADS_MAX, len(receipts)), "wings-extend") as threads:
        for message_id, receipt in receipts.items():
            threads.submit(extend, message_id, receipt)
    return found, problems[0] if problems else None
