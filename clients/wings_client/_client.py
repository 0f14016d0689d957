"""The client: one object for all calls, safe to share between threads."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack

from wings_client._access import Access, Pem
from wings_client._admin import TopicRef, is_from_end, name_of
from wings_client._arguments import (
    NUMBER_OR_INFINITY,
    build,
    checked,
    checked_with,
    instance_of,
    list_of,
    that_is,
    wire_partition,
)
from wings_client._chunks import OnDataLoss
from wings_client._consumer import Consumer, ConsumerEngine
from wings_client._consumer_groups import ConsumerGroupCalls
from wings_client._consumer_offsets import ConsumerOffsets, Start
from wings_client._consumer_reads import ConsumerReads
from wings_client._group import (
    POLL_SECONDS,
    SESSION_SECONDS,
    GroupOptions,
    GroupReads,
    SlotsCallback,
)
from wings_client._model import PartitionValue, Topic
from wings_client._read_options import SelectKeywords
from wings_client._reads import ReadCalls
from wings_client._retry import Retry
from wings_client._shards import ShardCalls
from wings_client._share import DELIVERY_MESSAGES, ShareCalls, member_name, ticket_of
from wings_client._share_consumer import ShareConsumer
from wings_client._share_engine import ShareEngine
from wings_client._tables import TableCalls
from wings_client._transactions import TransactionCalls
from wings_client._transport import TIMEOUT_SECONDS, Closing, Transport
from wings_client._worker import WorkerCalls
from wings_client._writes import WriteCalls
from wings_client.gather._gather import Gather, gather
from wings_client.gather._request import Request, Rules, Sentinel, Strategy, wait
from wings_core.contracts.reads import ReadOptions
from wings_core.contracts.share import CREDIT_MAX
from wings_core.errors import FencedMember, InvalidArgument, InvalidTicket


@checked_with(retry=instance_of("a Retry", Retry))
def connect(
    endpoint: str | Sequence[str],
    *,
    timeout: float = TIMEOUT_SECONDS,
    retry: Retry | None = None,
    token: str | None = None,
    tls_ca: Pem | None = None,
    tls_cert: Pem | None = None,
    tls_key: Pem | None = None,
    discover: bool = True,
) -> "Client":
    """Return a client of a Wings server; the connection is made by the first call.

    Args:
        endpoint: Address like `grpc://host:7777`, with TLS `grpc+tls://host:7777`. Of the nodes of
            a cluster, some or all: `grpc://a:7777,b:7777,c:7777`, or a list of addresses. A random
            one is used until it is unreachable; then repeatable calls go to the next. Scans read
            from all live nodes, whichever were named.
        timeout: Seconds that a call may take, its retries included (a long poll may wait beside
            it), and that a stream may stand still.
        retry: Rules of what is tried again, and how long.
        token: Presented with each call; None: that of the environment variable `WINGS_TOKEN`.
        tls_ca: A file in PEM, or as bytes what one holds: the authorities that servers are checked
            against; None: those that gRPC comes with.
        tls_cert: Likewise, this client's certificate, for mutual TLS.
        tls_key: Likewise, its private key.
        discover: Whether the other processes and nodes that serve the log are found when the first
            stream is opened, and used as if they had been named, as far as they answer. With a
            token, when the first scan begins.

    Raises:
        InvalidArgument: The timeout is not positive, or there is no address, or an empty one; a
            file cannot be read, or a certificate is without its key.
    """
    access = Access.of(token, tls_ca, tls_cert, tls_key)
    return Client(Transport(endpoint, timeout, retry or Retry(), access, discover=discover))


@checked
class Client(
    Closing,
    WriteCalls,
    ReadCalls,
    TableCalls,
    TransactionCalls,
    ConsumerGroupCalls,
    ShardCalls,
    ShareCalls,
    WorkerCalls,
):
    """A client of one server; made by `connect`, safe to share between threads.

    Every call raises errors of the tree under `WingsError`: the server's own, or `Unavailable`
    with the fact `connection`, which classifies the failure (see `Connection`).
    """

    @property
    def endpoint(self) -> str:
        """The address of the server; of several nodes, the one in use now."""
        return self._transport.endpoint

    def __repr__(self) -> str:
        """Return the address in use."""
        return f"Client({self.endpoint!r})"

    def close(self) -> None:
        """Close all that this client opened: producers flush, consumers commit, reads end.

        Raises:
            WingsError: A producer's remaining batches were refused or could not be sent.
        """
        self._transport.close()

    @checked_with(
        topic=that_is(
            "a topic's name or a Topic, or a list of them",
            lambda value: all(isinstance(each, str | Topic) for each in _listed(value)),
        )
    )
    def consumer(
        self,
        name: str,
        topic: TopicRef | Sequence[TopicRef],
        *,
        partitions: Sequence[PartitionValue] | None = None,
        start: Start = "earliest",
        on_data_loss: OnDataLoss = "error",
        auto_commit: bool | float = True,
        timeout: float | None = None,
        group: bool = False,
        member: str | None = None,
        instance: str | None = None,
        session: float = SESSION_SECONDS,
        poll_timeout: float = POLL_SECONDS,
        on_assigned: SlotsCallback | None = None,
        on_revoked: SlotsCallback | None = None,
        **options: Unpack[SelectKeywords],
    ) -> Consumer:
        """Open a named consumer, which resumes at the last committed offsets of its name.

        Args:
            name: The name under which the server keeps its offsets. One consumer of a name reads a
                partition at a time; a second one reads everything too, and is warned of.
            topic: The topic; a member of a group may read several.
            partitions: Partitions to read; None: all, including new ones as they appear. Many are
                read in one stream.
            start: Where to begin in a partition of which nothing was committed: `"earliest"`,
                `"latest"` or a time. Partitions born later are read from their start.
            on_data_loss: `"skip"`: in a partition where retention has passed the committed offset,
                or overtakes the consumer, go on with what is kept, and log a warning. `"error"`:
                raise `OffsetOutOfRange`, at each start until an offset that is kept is committed.
            auto_commit: True commits each batch once the next one is asked for, so that a batch
                whose processing failed is read again. A number does so at most every so many
                seconds. False leaves it to `Consumer.commit`.
            timeout: Seconds without a message after which iteration ends, once the server says that
                there is none; None: never.
            group: Share the topic's partitions with the other members of the group of this name:
                each partition is read by one member at a time, and moves to another when a member
                joins, leaves or dies. Items are `(batch, ranges)`, of a list of topics
                `(batch, ranges, topic)`.
            member: Name of the member, unique in its group; None: one of its own.
            instance: A name that survives restarts: a member of it that joins within the session of
                the last one has its partitions, and ends that one: iteration raises `FencedMember`.
            session: Seconds, 6 to 600, without a heartbeat after which the member counts as dead.
            poll_timeout: Seconds without asking for a batch, while one is being processed, after
                which the member leaves the group by itself.
            on_assigned: Called with the slots that are assigned, a list of `AssignedSlots`, on a
                thread of the client's.
            on_revoked: Called with the slots that are revoked, after what was processed of them is
                committed; on a thread of the client's.
            options: `columns`: names of the columns to return, in order, instead of all.
                `filter`: a SQL predicate over the topic's columns.
                `system_columns=True`: append `__offset` and `__timestamp`; of many partitions,
                before them `__partition`, the value's JSON text.

        Returns:
            An iterator: of a single partition of `(batch, partition, start_offset, end_offset)`, of
            many of `(batch, ranges)`; see `Consumer`.

        Raises:
            TopicNotFound: There is no such topic; also while iterating.
            OffsetOutOfRange: A committed offset is below the log's start, and that is an error;
                while iterating.
        """
        if group and partitions is not None:
            raise InvalidArgument("a member of a group reads the partitions that it is assigned")
        member_options = None
        if group:
            member_options = GroupOptions.of(
                member,
                instance=instance,
                session_seconds=session,
                poll_seconds=poll_timeout,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
            )
        topics = [self._described(each) for each in _listed(topic)]
        by_topic = isinstance(topic, list | tuple)
        if by_topic and not (topics and group):
            raise InvalidArgument("a consumer reads one topic; a member of a group reads several")
        if len({each.uuid for each in topics}) < len(topics):
            raise InvalidArgument("a topic is named twice")
        wanted = build(ReadOptions, "consumer", error=InvalidTicket, **options)
        offsets = ConsumerOffsets(self._transport, self, name, topics, by_topic=by_topic)
        reads: ConsumerReads | GroupReads
        if member_options is None:
            (described,) = topics
            fixed = [None] if described.partition_key is None else None  # New ones as they appear.
            if partitions is not None:
                fixed = [wire_partition(value) for value in partitions]
            first = offsets.first(described, start)
            reads = ConsumerReads(
                self._transport, described, fixed, first, wanted, on_data_loss, offsets
            )
        else:
            if start != "earliest":
                for described in topics:
                    self._begin_group(offsets, described, start)
            reads = GroupReads(
                self._transport,
                offsets,
                member_options,
                wanted.selection,
                on_data_loss,
                commits=auto_commit is not False,
            )
            offsets.fence = reads.fence
        engine = ConsumerEngine(self._transport, offsets, reads, auto_commit, timeout)
        consumer = Consumer(engine)
        self._transport.add(consumer)
        return consumer

    def _begin_group(self, offsets: ConsumerOffsets, topic: Topic, start: Start) -> None:
        """Commit where a group begins in a topic of which it has read nothing."""
        try:
            offsets.first(topic, start)
        except FencedMember:  # The group has members: one of them may have begun it.
            if not self.committed_offsets(offsets.name, topic):
                raise FencedMember(
                    f"the group {offsets.name!r} has members and has read nothing of "
                    f"{topic.name}: it begins at the earliest, not at {start}"
                ) from None

    def share_consumer(
        self,
        group: str,
        topic: TopicRef,
        *,
        member: str | None = None,
        partition: PartitionValue = None,
        max_messages: int = DELIVERY_MESSAGES,
        prefetch: int = 0,
        timeout: float | None = None,
        auto_renew: bool | float = True,
    ) -> ShareConsumer:
        """Join a share group as a member, which acquires messages and acknowledges each.

        Args:
            group: The name of an existing group; see `create_share_group`.
            topic: The topic of the group.
            member: This member's name; None: a random one. Two members of the same name can each
                acknowledge what the other holds.
            partition: Acquire messages of this partition alone; None: of any.
            max_messages: Acquire at most this many at once.
            prefetch: How many further deliveries may come ahead, held for this member, while it
                works with one or what it acknowledged becomes durable; with all of them at most
                10,000 messages.
            timeout: Seconds without a delivery after which iteration ends; None: never. 0
                acquires only what is available.
            auto_renew: True renews what is held until it is acknowledged; a number does so for as
                many seconds after a delivery was taken, and after another was, of what waits; False
                leaves it to `ShareConsumer.renew`.

        Raises:
            InvalidTicket: A name or number is out of range.
            InvalidArgument: So is `prefetch`.
            TopicNotFound: While iterating: there is no such topic.
            GroupNotFound: While iterating: the topic has no such group.
        """
        if not 0 <= prefetch <= CREDIT_MAX:
            raise InvalidArgument(f"prefetch must be 0 to {CREDIT_MAX}; got {prefetch!r:.80}")
        name = member or member_name()
        ticket = ticket_of(group, name_of(topic), name, partition, max_messages)
        engine = ShareEngine(self._transport, ticket, timeout, auto_renew, prefetch)
        consumer = ShareConsumer(engine)
        self._transport.add(consumer)
        return consumer

    @checked_with(
        requests=list_of("Request", Request),
        stall_timeout=NUMBER_OR_INFINITY,
        strategy=instance_of("a Strategy", Strategy),
        timeout=NUMBER_OR_INFINITY,
    )
    def gather(
        self,
        requests: Iterable[Request],
        *,
        timeout: float | None = None,
        stall_timeout: float | None = None,
        max_messages: int | None = None,
        sentinel: Sentinel | None = None,
        on_error: Literal["end", "continue"] = "end",
        strategy: Strategy = wait,
    ) -> Gather:
        """Send one request to many partitions or servers, and yield the replies as they arrive.

        Args:
            requests: Requests to send at once; see `wings_client.gather.Request`.
            timeout: Seconds to wait in all; None: the client's. Time that the caller spends with a
                reply does not count.
            stall_timeout: Seconds to wait for each reply but the first; None, less than a
                millisecond, or no less than `timeout`: as long as the rest of it.
            max_messages: End after this many replies.
            sentinel: A predicate, true to continue (the reply for which it is false is the last
                delivered), or `wings_client.gather.EMPTY`: an empty reply ends, undelivered.
            on_error: `"end"` ends with the first source that fails, `"continue"` goes on with the
                others.
            strategy: `wait`, `stall` or `first(n)` of `wings_client.gather`.

        Raises:
            InvalidArgument: An option is out of range, or there are no requests.
            InvalidTicket: A request is out of range.
        """
        rules = Rules.of(
            timeout=timeout,
            stall_timeout=stall_timeout,
            max_messages=max_messages,
            sentinel=sentinel,
            on_error=on_error,
            strategy=strategy,
            client_timeout=self._transport.timeout,
        )
        return gather(self._transport, map(self._from_start, requests), rules)

    def _from_start(self, request: Request) -> Request:
        """Return a request whose start no longer counts from the end, unless it is elsewhere."""
        if request.endpoint is not None or not is_from_end(request.offset):
            return request
        where = request.partition, request.partitions, request.offset
        return replace(request, offset=self._counted(request.topic, *where))


def _listed(topic: Any) -> Sequence[Any]:
    return topic if isinstance(topic, list | tuple) else [topic]
