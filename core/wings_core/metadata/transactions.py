"""The rules of transactions, the same in every store.

    joined ──▶ open ──▶ committed ─┐        an open one ends by itself at its deadline,
       ▲         └────▶ aborted  ──┤        and when its name is joined again
       └──── the next epoch ◀──────┘

A producer joins a name and gets an id and an epoch, which fence the lives before it, as with
Kafka's transactional producers (KIP-98). Each partition that a transaction writes to has a stage,
begun with the partition's entry into the transaction: a batch that comes when the transaction has
ended finds no stage, and is refused in the transaction of metadata that would have added it.
"""

from wings_core.errors import InvalidArgument, PublishFenced, StageNotFound
from wings_core.metadata.checks import check_id
from wings_core.model import ProducerEpoch, StageEntry, Transaction, TransactionState
from wings_core.partitions import Partition

EPOCH_MAX = 32_766
"""Highest epoch of a producer id; the next life gets another id. Kafka's epochs have 16 bits."""

PARTITIONS_MAX = 10_000
"""Most partitions, and most offsets of consumers, of one transaction."""

TIMEOUT_MS_MAX = 15 * 60 * 1_000
"""Longest time that a transaction stays open."""

_PARTITION_CHARACTERS_MAX = 64
"""Longest value of a partition in a transaction, whose stage's id holds it."""


def stage_prefix(producer: ProducerEpoch) -> str:
    """Return the beginning of the ids of a producer's stages.

    It has a character that clients' ids cannot have.
    """
    return f"transaction/{producer.producer_id}/{producer.epoch}/"


def stage_entry(
    name: str, producer: ProducerEpoch, topic_uuid: str, partition: Partition
) -> StageEntry:
    """Return the stage of a partition in a producer's open transaction.

    Raises:
        InvalidArgument: The partition's value is too long.
    """
    if len(partition) > _PARTITION_CHARACTERS_MAX:
        raise InvalidArgument(f"partition {partition:.40}… is too long for a transaction")
    return StageEntry(f"{stage_prefix(producer)}{topic_uuid}/{partition}", name, first=False)


def check_join(name: str, timeout_ms: int) -> None:
    """Check a name and the time-out of its transactions.

    Raises:
        InvalidArgument: The name is empty or cannot be stored, or the time-out is out of range.
    """
    if not name:
        raise InvalidArgument("the transaction's name must not be empty")
    check_id("the transaction's name", name)
    if not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise InvalidArgument(f"a time-out of {timeout_ms} ms: expected 1 to {TIMEOUT_MS_MAX}")


def check_producer(name: str, producer: ProducerEpoch, found: Transaction | None) -> Transaction:
    """Check that a producer is the one that joined last; returns the name's last transaction.

    Raises:
        PublishFenced: It is not: the fact `epoch` is the epoch of its id now, None where the name
            is unknown or the id is another's.
    """
    if found is None or found.producer_id != producer.producer_id:
        raise PublishFenced(f"no such producer has joined {name!r:.80}", epoch=None)
    if found.epoch != producer.epoch:
        raise PublishFenced(
            f"producer {producer.producer_id} of {name!r:.80} is at epoch {found.epoch}, not "
            f"{producer.epoch}",
            epoch=found.epoch,
        )
    return found


def is_ended(found: Transaction, *, commit: bool) -> bool:
    """Tell whether a transaction has ended so already, which makes an end of it a repeat.

    Raises:
        StageNotFound: None is open, and the last one did not end so.
    """
    if found.state == TransactionState.OPEN:
        return False
    if found.state == (TransactionState.COMMITTED if commit else TransactionState.ABORTED):
        return True
    raise StageNotFound(f"no transaction of {found.name!r:.80} is open: its state is {found.state}")
