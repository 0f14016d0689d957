"""Azure's storage queues, through azure-storage-queue (extra `azure`)."""

import importlib
import os
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from wings_core.errors import InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from wings_core.queue.interfaces import THREADS_MAX, Queue, QueueMessage, Receipts
from wings_core.runtime import import_extra

CALL_MESSAGES_MAX = 32
"""Most messages of one call."""

VISIBILITY_SECONDS_MAX = 7 * 86_400
"""Greatest visibility timeout."""

PAUSE_SECONDS = 1.0
"""Interval of polling an empty queue, as Azure has no call that waits."""

_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_SIGNATURES = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")

_LOST = ("MessageNotFound", "PopReceiptMismatch", "InvalidQueryParameterValue")


class AzureQueue(Queue):
    """See `Queue`.

    The credentials are an account's key or a shared access signature in the environment, as for
    objects, or else those that azure-identity finds.

    Args:
        url: URL of the queue.
        receipts: Stores the receipts that Azure returns for each extension; without it, other
            processes cannot acknowledge a message that this one extended.

    Raises:
        InvalidArgument: azure-storage-queue is not installed, or the URL is not that of a queue.
        Unauthenticated: There are no credentials.
    """

    def __init__(
        self,
        url: str,
        *,
        receipts: Path | None = None,
    ) -> None:
        library: Any = import_extra(
            "azure.storage.queue", "Azure's queues need azure-storage-queue", "azure"
        )
        try:
            # A client is thread-safe.
            self._client: Any = library.QueueClient.from_queue_url(url, credential=_credential())
        except ValueError as error:
            raise InvalidArgument(f"{url!r:.200} is not the URL of a queue: {error}") from None
        self._url = url
        self._closed = threading.Event()
        self._receipts = Receipts(receipts)

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Receive messages; see `Queue.receive`."""
        until = time.monotonic() + wait_seconds
        while True:
            found = self._receive(messages_max, _seconds(visibility_seconds))
            left = until - time.monotonic()
            if found or left <= 0 or self._closed.wait(min(PAUSE_SECONDS, left)):
                return found

    def _receive(self, messages_max: int, seconds: int) -> list[QueueMessage]:
        began = time.time()
        with self._translated_errors():
            messages = self._client.receive_messages(
                visibility_timeout=seconds,
                messages_per_page=min(CALL_MESSAGES_MAX, messages_max),
                max_messages=messages_max,
            )
            return [
                QueueMessage(
                    each.id,
                    f"{each.id} {each.pop_receipt}",
                    str(each.content),
                    int(each.dequeue_count or 1),
                    began + seconds,
                )
                for each in messages
            ]

    def extend(self, receipt: str, visibility_seconds: float) -> float | None:
        """Hide a message for longer; see `Queue.extend`."""
        began = time.time()
        seconds = _seconds(visibility_seconds)
        message, known = self._known(receipt)
        if not known:
            return None
        faults: Any = importlib.import_module("azure.core.exceptions")
        try:
            with self._translated_errors():
                answer = self._client.update_message(message, known, visibility_timeout=seconds)
        except faults.HttpResponseError:
            return None
        self._receipts.put(receipt, answer.pop_receipt)
        return began + seconds

    def acknowledge(self, receipts: Sequence[str]) -> None:
        """Delete messages, by one call each; see `Queue.acknowledge`."""
        if not receipts:
            return
        with ThreadPoolExecutor(min(THREADS_MAX, len(receipts)), "wings-acknowledge") as threads:
            list(threads.map(self._delete, receipts))
        self._receipts.forget(receipts)

    def _delete(self, receipt: str) -> None:
        faults: Any = importlib.import_module("azure.core.exceptions")
        message, known = self._known(receipt)
        # Otherwise it was deleted, or delivered again.
        with suppress(faults.HttpResponseError), self._translated_errors():
            self._client.delete_message(message, known)

    def _known(self, receipt: str) -> tuple[str, str]:
        """Return a message's id, and its current receipt at Azure."""
        message, _, given = receipt.partition(" ")
        return message, self._receipts.get(receipt) or given

    def send(self, bodies: Iterable[str]) -> None:
        """Add messages; see `Queue.send`. They never expire."""
        with self._translated_errors():
            for body in bodies:
                self._client.send_message(body, time_to_live=-1)

    def pending(self) -> int | None:
        """Return None: Azure's count includes hidden messages."""
        return None

    def close(self) -> None:
        """Close the connections."""
        self._closed.set()
        self._client.close()
        self._receipts.close()

    @contextmanager
    def _translated_errors(self) -> Generator[None]:
        """Translate errors, except those of a lost message."""
        faults: Any = importlib.import_module("azure.core.exceptions")
        what = f"the queue {self._url}"
        try:
            yield
        except faults.HttpResponseError as error:
            named: Any = getattr(error, "error_code", None)
            code = str(getattr(named, "value", named))
            status = error.status_code
            if code in _LOST:
                raise
            if code == "QueueNotFound" or status == _NOT_FOUND:
                raise InvalidArgument(f"there is no queue {self._url}") from None
            text = str(error).partition("\n")[0]
            if status == _UNAUTHORIZED or code == "AuthenticationFailed":
                raise Unauthenticated(f"{what}: {text}") from None
            if status == _FORBIDDEN:
                raise PermissionDenied(f"{what}: {text}") from None
            raise Unavailable(f"{what}: {text}") from None
        except faults.ClientAuthenticationError as error:
            raise Unauthenticated(f"{what}: {error}") from None
        except faults.AzureError as error:
            raise Unavailable(f"{what}: {error}") from None


_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404


def _credential() -> Any:
    for name in (*_KEYS, *_SIGNATURES):
        if found := os.environ.get(name):
            return found
    needed = (
        "Azure needs AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN in the environment, "
        "or azure-identity"
    )
    identity: Any = import_extra("azure.identity", needed, "azure", Unauthenticated)
    return identity.DefaultAzureCredential()


def _seconds(seconds: float) -> int:
    return max(1, min(VISIBILITY_SECONDS_MAX, round(seconds)))
