"""Interface of transactions: rows of many streams and offsets of many consumers, in one publish."""

from collections.abc import Sequence
from typing import Protocol

from wings_core.model import (
    CommittedOffset,
    ConsumerCommit,
    ProducerEpoch,
    PublishResult,
    Topic,
    Transaction,
)
from wings_core.partitions import Partition


class Transactions(Protocol):
    """Transactions by the name of their producer, of which one at a time is open.

    A transaction stages rows of any partitions, by any streams (`transactions.stage_entry` names
    the stage of a partition), and collects offsets of any consumers. Its end publishes all of them
    at once, or deletes them. What is open survives restarts, until its deadline.
    """

    def join(self, name: str, timeout_ms: int, held: ProducerEpoch | None = None) -> ProducerEpoch:
        """Begin the next life of a name's producer, durably; an open transaction is aborted.

        Earlier lives are fenced. A name is forgotten `stages.WRITERS_KEPT_US` after its last
        change.

        Args:
            name: At most 256 bytes.
            timeout_ms: Longest time that a transaction stays open; to `TIMEOUT_MS_MAX`.
            held: The life that the caller held so far; None: the caller has just begun. The same
                again is answered with the same life.

        Raises:
            PublishFenced: Another producer has joined since `held`.
            InvalidArgument: A name or time-out that cannot be.
        """
        ...

    def add_partitions(
        self, name: str, producer: ProducerEpoch, partitions: Sequence[tuple[Topic, Partition]]
    ) -> None:
        """Begin the stages of partitions, durably; opens a transaction where none is open.

        Partitions that it has already stay as they are.

        Args:
            name: The name.
            producer: Its producer.
            partitions: At most `PARTITIONS_MAX` in a transaction.

        Raises:
            PublishFenced: The producer is not the one that joined last; see `check_producer`.
            TopicNotFound: One of the topics was deleted; nothing is changed.
            InvalidArgument: There are too many, or a partition cannot be stored.
        """
        ...

    def add_offsets(self, name: str, producer: ProducerEpoch, offsets: ConsumerCommit) -> None:
        """Store offsets to be committed with the transaction; opens one where none is open.

        The last offset of a partition counts, for each consumer.

        Args:
            name: The name.
            producer: Its producer.
            offsets: May be none, which only opens the transaction.

        Raises:
            PublishFenced: As of `add_partitions`.
            FencedMember, OffsetOutOfRange, TopicNotFound, InvalidArgument: As of
                `OffsetRegistry.commit_offsets`; nothing is changed.
        """
        ...

    def end(self, name: str, producer: ProducerEpoch, *, commit: bool) -> PublishResult:
        """End the open transaction, in one durable transaction of metadata.

        A commit makes all its rows visible and commits all its offsets; what belongs to topics
        that were deleted meanwhile falls away. Waiters are woken afterwards. Repeated, it changes
        nothing, and its ranges are not remembered.

        Args:
            name: The name.
            producer: Its producer.
            commit: False: delete all instead.

        Raises:
            PublishFenced: As of `add_partitions`.
            StageNotFound: No transaction is open, and the last one ended otherwise.
            FencedMember: A member of a consumer's group lost one of the partitions; nothing is
                changed.
            BatchTooLarge: The rows have more pages than go into one transaction.
        """
        ...

    def expire(self, transactions_max: int) -> int:
        """Abort transactions past their deadline, and fence their producers, the oldest first.

        A fenced producer may join again as the holder of its epoch. Where the store's clock was set
        back, a transaction that is open gets its whole timeout anew.

        Returns:
            How many were looked at; if as many as `transactions_max`, there may be more.
        """
        ...

    def find(self, name: str) -> Transaction | None:
        """Return a name's last transaction; None where nobody has joined."""
        ...

    def pending(self, consumer: str) -> list[CommittedOffset]:
        """Return the offsets of a consumer that open transactions will commit."""
        ...
