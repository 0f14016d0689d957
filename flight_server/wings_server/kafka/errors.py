"""Kafka's error codes, and the translation of the log's errors into them, in one place."""

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from wings_core.errors import (
    AlreadyExists,
    BatchTooLarge,
    Conflict,
    FencedMember,
    InvalidArgument,
    InvalidName,
    NamespaceNotFound,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PermissionDenied,
    PublishFenced,
    ResourceExhausted,
    StageNotFound,
    StorageCorrupt,
    TopicNotFound,
    Unauthenticated,
    Unavailable,
    WingsError,
)


class KafkaError(Exception):
    """A refusal with one of Kafka's codes.

    Args:
        code: Kafka's code.
        message: The reason, for `error_message` fields; the code's name if empty.
        records: Indexes of the refused records in their batch, as far as they are known.
    """

    def __init__(self, code: ErrorCode, message: str = "", records: Sequence[int] = ()) -> None:
        super().__init__(message or code.name)
        self.records = records
        self.code = code
        self.message = message or code.name


FAILURES = (KafkaError, WingsError)
"""Errors that `code_of` knows, each with a `message`."""

_CODES: tuple[tuple[type[WingsError], ErrorCode], ...] = (
    (TopicNotFound, ErrorCode.unknown_topic_or_partition),
    (NamespaceNotFound, ErrorCode.unknown_topic_or_partition),
    (InvalidName, ErrorCode.invalid_topic_exception),
    (AlreadyExists, ErrorCode.topic_already_exists),
    (OffsetOutOfRange, ErrorCode.offset_out_of_range),
    (BatchTooLarge, ErrorCode.message_too_large),
    (FencedMember, ErrorCode.unknown_member_id),
    (OutOfOrderSequence, ErrorCode.out_of_order_sequence_number),
    (PublishFenced, ErrorCode.invalid_producer_epoch),
    (StageNotFound, ErrorCode.invalid_txn_state),
    (PermissionDenied, ErrorCode.topic_authorization_failed),
    (Unauthenticated, ErrorCode.sasl_authentication_failed),
    (StorageCorrupt, ErrorCode.kafka_storage_error),
    (InvalidArgument, ErrorCode.invalid_request),
    (Conflict, ErrorCode.invalid_request),
)
"""Codes of errors, the first that matches."""


def code_of(error: Exception, retried: ErrorCode = ErrorCode.kafka_storage_error) -> ErrorCode:
    """Return Kafka's code of an error.

    Args:
        error: The error.
        retried: Code of a passing failure, which clients retry: the log is unavailable or full.
    """
    if isinstance(error, KafkaError):
        return error.code
    if isinstance(error, ResourceExhausted) and "quota" in error.facts:
        return ErrorCode.policy_violation
    if isinstance(error, Unavailable | ResourceExhausted):
        return retried
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.unknown_server_error
