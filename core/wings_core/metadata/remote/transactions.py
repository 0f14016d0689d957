"""Transactions at a metadata service."""

from typing import Any

from wings_core.metadata.interfaces import Transactions
from wings_core.metadata.remote.rpc import Calls, Field, RemotePart, StepSize, rpc
from wings_core.metadata.remote.stages import PUBLISH_SECONDS
from wings_core.model import Topic
from wings_core.partitions import Partition, canonical_partition
from wings_core.protocol import messages
from wings_core.protocol.v1 import transactions_pb2 as pb


def _entry(given: tuple[Topic, Partition]) -> pb.AddTransactionPartitionsRequest.Entry:
    topic, partition = given
    return pb.AddTransactionPartitionsRequest.Entry(
        topic=str(topic.name), topic_uuid=topic.uuid, partition=partition
    )


def _partition_of(entry: Any) -> tuple[Topic, Partition]:
    topic = messages.named_topic(entry.topic, entry.topic_uuid)
    return topic, canonical_partition(entry.partition)


_PARTITIONS = Field(None, _entry, _partition_of)
_OFFSETS = Field(None, messages.consumer_commit_message, messages.consumer_commit_of)


class RemoteTransactions(RemotePart, Transactions):
    """See `Transactions`. Changes are repeated where their response is lost."""

    join = rpc("TransactionService.JoinTransactions", Transactions.join, Calls.REPEAT)
    add_partitions = rpc(
        "TransactionService.AddTransactionPartitions",
        Transactions.add_partitions,
        Calls.REPEAT,
        partitions=_PARTITIONS,
    )
    add_offsets = rpc(
        "TransactionService.AddTransactionOffsets",
        Transactions.add_offsets,
        Calls.REPEAT,
        offsets=_OFFSETS,
    )
    end = rpc(
        "TransactionService.EndTransaction",
        Transactions.end,
        Calls.REPEAT,
        call_seconds=PUBLISH_SECONDS,
    )
    expire = rpc(
        "TransactionService.ExpireTransactions",
        Transactions.expire,
        Calls.ONCE,
        transactions_max=StepSize(),
    )
    find = rpc("TransactionService.GetTransaction", Transactions.find, Calls.LOOK)
    pending = rpc("TransactionService.ListPendingOffsets", Transactions.pending, Calls.LOOK)
