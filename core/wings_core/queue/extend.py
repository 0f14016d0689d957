"""Extension of many messages' visibility, by a bounded pool of threads."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from wings_core.queue.interfaces import Queue

THREADS_MAX = 16
"""Concurrent calls: one to a distant queue takes tens of milliseconds."""


def extend_all(
    queue: Queue, receipts: Mapping[str, str], seconds: float
) -> tuple[dict[str, float | None], Exception | None]:
    """Hide messages for `seconds` from now on; the first failure leaves the rest as they are.

    Blocks until all calls have ended.

    Args:
        queue: The queue that delivered them.
        receipts: Receipts by message id.
        seconds: The new visibility.

    Returns:
        The new deadlines by message id, None for a lost message, without the messages that were not
        extended; and the error of the first call that failed, or None.
    """
    if not receipts:
        return {}, None
    found: dict[str, float | None] = {}
    problems: list[Exception] = []
    failed = threading.Event()

    def extend(message_id: str, receipt: str) -> None:
        if failed.is_set():
            return  # It would fail in the same way.
        try:
            found[message_id] = queue.extend(receipt, seconds)
        except Exception as error:  # noqa: BLE001 - returned
            problems.append(error)
            failed.set()

    with ThreadPoolExecutor(min(THREADS_MAX, len(receipts)), "wings-extend") as threads:
        for message_id, receipt in receipts.items():
            threads.submit(extend, message_id, receipt)
    return found, problems[0] if problems else None
