"""Amazon SQS and compatible services, through boto3 (extra `sqs`)."""

import importlib
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from wings_core.errors import (
    InvalidArgument,
    InvalidRecordState,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    WingsError,
)
from wings_core.queue.interfaces import Queue, QueueMessage
from wings_core.runtime import import_extra

CALL_MESSAGES_MAX = 10
"""Most messages of one call to SQS."""

WAIT_SECONDS_MAX = 20
"""Longest wait of SQS for a message."""

VISIBILITY_SECONDS_MAX = 43_200
"""Greatest visibility timeout of SQS."""

_LOST = ("ReceiptHandleIsInvalid", "MessageNotInflight")
_MISSING = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "NoSuchBucket")
_INVALID = ("InvalidParameterValue", "InvalidAddress", "InvalidAttributeName", "MissingParameter")
_UNKNOWN_CALLER = (
    "ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "InvalidClientTokenId",
    "InvalidSecurity", "MissingAuthenticationToken", "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)  # fmt: skip
_DENIED = ("AccessDenied", "AccessDeniedException", "OptInRequired", "UnauthorizedOperation")


_ERRORS: dict[str, type[WingsError]] = {
    **dict.fromkeys(_LOST, InvalidRecordState),
    **dict.fromkeys(_INVALID, InvalidArgument),
    **dict.fromkeys(_UNKNOWN_CALLER, Unauthenticated),
    **dict.fromkeys(_DENIED, PermissionDenied),
}
"""Errors by SQS's codes; all others are `Unavailable`."""


class SqsQueue(Queue):
    """See `Queue`. boto3 finds the credentials.

    Args:
        url: URL of the queue.
        region: Region of the queue; None for boto3's, or else `us-east-1`.
        endpoint: Endpoint of a compatible service.

    Raises:
        InvalidArgument: boto3 is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
    ) -> None:
        # A client is thread-safe.
        self._client = amazon_client("sqs", region, endpoint)
        self._url = url
        self._what = f"queue {url}"
        self._closed = threading.Event()

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Receive messages; see `Queue.receive`. Waits in whole seconds, by SQS's long poll."""
        found: list[QueueMessage] = []
        wait = max(0, min(WAIT_SECONDS_MAX, round(wait_seconds)))
        while len(found) < messages_max and not self._closed.is_set():
            began = time.time()
            wanted = min(CALL_MESSAGES_MAX, messages_max - len(found))
            with translated_errors(self._what):
                answer = self._client.receive_message(
                    QueueUrl=self._url,
                    MaxNumberOfMessages=wanted,
                    VisibilityTimeout=_seconds(visibility_seconds),
                    WaitTimeSeconds=0 if found else wait,
                    AttributeNames=["ApproximateReceiveCount"],
                )
            messages = answer.get("Messages", [])
            # Counted from the call, so that the deadline is never later than that of SQS.
            deadline = began + _seconds(visibility_seconds)
            found += [
                QueueMessage(
                    message["MessageId"],
                    message["ReceiptHandle"],
                    message["Body"],
                    int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
                    deadline,
                )
                for message in messages
            ]
            if not messages:
                break
        return found

    def extend(self, receipt: str, visibility_seconds: float) -> float | None:
        """Hide a message for longer; see `Queue.extend`."""
        began = time.time()
        seconds = _seconds(visibility_seconds)
        try:
            with translated_errors(self._what):
                self._client.change_message_visibility(
                    QueueUrl=self._url, ReceiptHandle=receipt, VisibilityTimeout=seconds
                )
        except (InvalidRecordState, InvalidArgument):
            return None  # For a deleted message, SQS reports an invalid value.
        return began + seconds

    def acknowledge(self, receipts: Sequence[str]) -> None:
        """Delete messages; see `Queue.acknowledge`."""
        for first in range(0, len(receipts), CALL_MESSAGES_MAX):
            part = receipts[first : first + CALL_MESSAGES_MAX]
            with translated_errors(self._what):
                answer = self._client.delete_message_batch(
                    QueueUrl=self._url,
                    Entries=[
                        {"Id": str(index), "ReceiptHandle": receipt}
                        for index, receipt in enumerate(part)
                    ],
                )
            failed = [
                entry for entry in answer.get("Failed", []) if not entry.get("SenderFault", True)
            ]
            if failed:
                raise Unavailable(
                    f"SQS did not delete {len(failed)} messages: {failed[0].get('Code')}"
                )

    def send(self, bodies: Iterable[str]) -> None:
        """Add messages, in order if the queue keeps it; see `Queue.send`."""
        waiting = list(bodies)
        for first in range(0, len(waiting), CALL_MESSAGES_MAX):
            part = waiting[first : first + CALL_MESSAGES_MAX]
            with translated_errors(self._what):
                answer = self._client.send_message_batch(
                    QueueUrl=self._url,
                    Entries=[
                        {"Id": str(index), "MessageBody": body} for index, body in enumerate(part)
                    ],
                )
            failed = answer.get("Failed", [])
            if failed:
                raise Unavailable(f"SQS rejected {len(failed)} messages: {failed[0].get('Code')}")

    def pending(self) -> int | None:
        """Return the approximate number of messages waiting for delivery."""
        with translated_errors(self._what):
            answer = self._client.get_queue_attributes(
                QueueUrl=self._url, AttributeNames=["ApproximateNumberOfMessages"]
            )
        return int(answer["Attributes"]["ApproximateNumberOfMessages"])

    def close(self) -> None:
        """Close the connections."""
        self._closed.set()
        self._client.close()


def amazon_client(service: str, region: str | None, endpoint: str | None) -> Any:
    """Return a client of one of Amazon's services; boto3 finds the credentials.

    Args:
        service: Name of the service, like `sqs`.
        region: Region; None for boto3's, or else `us-east-1`.
        endpoint: Endpoint of a compatible service.

    Raises:
        InvalidArgument: boto3 is not installed.
    """
    boto3: Any = import_extra("boto3", f"{service.upper()} needs boto3", "sqs")
    session: Any = boto3.Session()
    return session.client(
        service,
        region_name=region or session.region_name or "us-east-1",
        endpoint_url=endpoint,
    )


@contextmanager
def translated_errors(what: str) -> Generator[None]:
    """Translate errors of boto3 in a `with` statement.

    Args:
        what: The object of the call for messages, like `queue URL`.

    Raises:
        WingsError: The translated error.
    """
    faults: Any = importlib.import_module("botocore.exceptions")
    try:
        yield
    except faults.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _MISSING:
            raise InvalidArgument(f"there is no {what}") from None
        raise _ERRORS.get(code, Unavailable)(f"the {what}: {error}") from None
    except (faults.NoCredentialsError, faults.PartialCredentialsError) as error:
        raise Unauthenticated(f"the {what}: {error}") from None
    except faults.BotoCoreError as error:
        raise Unavailable(f"the {what}: {error}") from None


def _seconds(seconds: float) -> int:
    return max(1, min(VISIBILITY_SECONDS_MAX, round(seconds)))
