"""Shares: the share groups of a log, as the server and its clients meet them.

create ─▶ its DLQ topic ─▶ at its start in every partition ─▶ known
acquire ─▶ leased ranges ─▶ their rows ─▶ (the member works) ─▶ acknowledge
"""

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import uuid4

from wings_core.errors import GroupNotFound, NotFound, Unavailable, WingsError
from wings_core.fetch.fetcher import Cancel
from wings_core.limits import Limits
from wings_core.metadata.checks import check_name, existing_group
from wings_core.metadata.interfaces import Admin, Groups
from wings_core.model import (
    LeasedRange,
    ShareConfig,
    ShareGroup,
    Topic,
)
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition
from wings_core.share.coordinator.coordinator import Coordinator
from wings_core.share.coordinator.positions import Position
from wings_core.share.dead_letters.redrive import Redriver
from wings_core.share.dead_letters.writer import open_dead_letter_topic
from wings_core.share.delivery.delivery import (
    DeliveredBatch,
    Undelivered,
    deliveries,
    kept_delivery,
)
from wings_core.share.delivery.record_fetcher import RecordFetcher, check_column
from wings_core.share.model import Acknowledgement


class GroupMoved(Unavailable):
    """A group was moved to another position, and its members are to begin anew."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The share groups of a log; all methods may be called from any thread.

    Members use its `coordinator`, and `deliver`; dead letters go back by its `redriver`.

    Args:
        admin: Where topics are.
        groups: Where groups are kept.
        coordinator: Leases messages and takes acknowledgements; closed with this.
        records: Reads the rows of leased ranges; closed with this.
        redriver: Sends dead letters back.
        limits: The bounds in force.
    """

    _admin: Admin
    _groups: Groups
    coordinator: Coordinator
    _records: RecordFetcher
    redriver: Redriver
    _limits: Limits

    def find(self, topic: TopicName, group: str) -> ShareGroup:
        """Return a group of a topic, with its configuration as it is now.

        Raises:
            TopicNotFound: No such topic.
            GroupNotFound: It has no such group.
        """
        return self._groups.get(self._admin.get_topic(topic), group)

    def create(
        self, topic: TopicName, group: str, config: ShareConfig, *, if_not_exists: bool = False
    ) -> ShareGroup:
        """Create a group, and its topic of dead letters where it names one that is not there.

        Raises:
            TopicNotFound: No such topic.
            AlreadyExists: The topic has a group of this name; with `if_not_exists` it is returned
                as it is.
            SchemaMismatch: The DLQ topic is none of dead letters.
            InvalidArgument: The topic is to be its own DLQ, the name cannot be stored, or the
                column of times is none of the topic's.
            ResourceExhausted: The topic has as many groups as it may have.
            Unavailable: No majority of the replicas answered; or (the fact `in_doubt`) it is not
                known whether there is the group now.
        """
        check_name(group)
        found = self._admin.get_topic(topic)
        try:
            existing = self._groups.get(found, group)
        except GroupNotFound:
            pass
        else:
            return existing_group(existing, None, if_not_exists=if_not_exists)
        self._check_config(found, config)
        wanted = ShareGroup(group, str(uuid4()), found, config)
        # First its start, then its name: who finds the group finds it at its start.
        self.coordinator.positions.create(wanted)
        try:
            created = self._groups.create(wanted, if_not_exists=if_not_exists)
        except WingsError as error:
            # Where it may be known, it must not be forgotten: it would be refused for good.
            if not error.facts.get("in_doubt"):
                self.coordinator.delete(wanted)
            raise
        if created.uuid != wanted.uuid:
            self.coordinator.delete(wanted)
        return created

    def alter(self, topic: TopicName, group: str, changes: ShareConfig) -> ShareGroup:
        """Replace the keys of a group's configuration that were given in `changes`.

        Raises:
            TopicNotFound: No such topic.
            GroupNotFound: It has no such group.
            SchemaMismatch: The DLQ topic is none of dead letters.
            InvalidArgument: The topic is to be its own DLQ, or the column of times none of it.
        """
        found = self._admin.get_topic(topic)
        self._groups.get(found, group)
        self._check_config(found, changes)
        altered = self._groups.alter(found, group, changes)
        self.coordinator.altered(altered)
        return altered

    def seek(
        self, topic: TopicName, group: str, to: Position, partition: Partition | None
    ) -> ShareGroup:
        """Move a group to a position, forwards or backwards, and return it.

        What is held at that time is no longer: acknowledgements of it are refused. Its members
        begin anew. Delivery counts of before are forgotten, and what is acknowledged meanwhile may
        be delivered again.

        Args:
            topic: The group's.
            group: Its name.
            to: An offset, an end of the log, or a time.
            partition: The only partition to move; None: all.

        Raises:
            TopicNotFound: No such topic.
            GroupNotFound: It has no such group.
            OffsetOutOfRange: There is no such offset.
            InvalidArgument: Nothing was written to the partition yet.
            Unavailable: No majority of the replicas answered; or (the fact `in_doubt`) it is not
                known whether it was moved.
        """
        before = self._groups.get(self._admin.get_topic(topic), group)
        anew = replace(before, uuid=str(uuid4()))
        # First where it is, then its name, as in `create`.
        positions = self.coordinator.positions
        if partition is None:
            positions.create(anew, to)
        else:
            positions.create_moved(before, anew, to, partition)
        try:
            moved = self._groups.restart(before, anew.uuid)
        except WingsError as error:
            if not error.facts.get("in_doubt"):
                self.coordinator.delete(anew)
            raise
        self.coordinator.delete(before)
        return moved

    def delete(self, topic: TopicName, group: str) -> ShareGroup:
        """Delete a group with all that is known of its messages, and return what it was.

        Raises:
            TopicNotFound: No such topic.
            GroupNotFound: It has no such group.
        """
        deleted = self._groups.delete(self._admin.get_topic(topic), group)
        self.coordinator.delete(deleted)
        return deleted

    def of_topic(self, topic: TopicName) -> list[ShareGroup]:
        """Return a topic's groups, by name.

        Raises:
            TopicNotFound: No such topic.
        """
        return self._groups.of_topic(self._admin.get_topic(topic))

    def of_namespace(self, namespace: NamespaceName) -> list[ShareGroup]:
        """Return the groups of all topics of a namespace, by topic and name.

        Raises:
            NamespaceNotFound: No such namespace.
        """
        found: list[ShareGroup] = []
        for topic in self._admin.list_topics(namespace):
            with suppress(NotFound):  # It was deleted meanwhile.
                found += self._groups.of_topic(topic)
        return found

    def deliver(
        self, group: ShareGroup, member: str, leased: Sequence[LeasedRange], cancel: Cancel
    ) -> Generator[DeliveredBatch]:
        """Yield the rows of leased ranges, in their order; blocks for the reads.

        What is damaged is released, which counts as a delivery, so that it ends as a dead letter;
        its neighbours are delivered. What cannot be read for now, what retention has removed, and
        what was not yielded when the iterator is closed, or `cancel` is set, is released without
        counting one. So is what does not go into the first batch of a range in order: it comes with
        a later lease.

        Raises:
            SchemaMismatch: None of it fits the schema of the group's topic, which has grown since
                the group was found; `find` returns it with the last.
            WingsError: None of it could be read, or what `cancel` was set with.
        """
        delivered = False
        failure: WingsError | None = None
        left = list(leased)
        try:
            while left:
                for part in deliveries(self._records, group.topic, left[0], self._limits):
                    cancel.check()
                    left[0] = replace(left[0], start_offset=part.range.end_offset + 1)
                    if isinstance(part, Undelivered):
                        failure = part.error or failure
                        self._release(group, member, part)
                    else:
                        # A delivery is counted even where the rows are lost on their way.
                        delivered = True
                        yield part
                    if part.range.in_order and left[0].messages:
                        self.coordinator.release_undelivered(group, left[:1])
                        break
                del left[0]
        finally:
            unsent = [each for each in left if each.messages > 0]
            if unsent:
                self.coordinator.release_undelivered(group, unsent)
        if failure is not None and not delivered:
            raise failure

    def kept(self, group: ShareGroup, leased: LeasedRange) -> DeliveredBatch | None:
        """Return the rows of a leased range where that takes no read; see `kept_delivery`.

        Where this process is the only one, metadata is near: to look at it takes no longer than
        to acquire does.
        """
        near = self.coordinator.is_local
        return kept_delivery(self._records, self._limits, group.topic, leased, near=near)

    def close(self) -> None:
        """End waiting calls with `Unavailable`, and end the threads."""
        try:
            self.coordinator.close()
        finally:
            self._records.close()

    def _release(self, group: ShareGroup, member: str, part: Undelivered) -> None:
        if part.damaged:
            self.coordinator.acknowledge(group, member, [Acknowledgement.of(part.range, "release")])
        else:
            self.coordinator.release_undelivered(group, [part.range])

    def _check_config(self, topic: Topic, config: ShareConfig) -> None:
        if config.deliver_at_column is not None:
            check_column(topic, config.deliver_at_column)
        if config.dlq is not None:
            open_dead_letter_topic(self._admin, config.dlq, topic.name)


def blame_topic(admin: Admin, groups: Groups, group: ShareGroup) -> None:
    """Raise the cause for which a group is not found, where it is another.

    Raises:
        TopicNotFound: Its topic was deleted.
        GroupMoved: It was moved, so that its members begin anew.
    """
    topic = admin.get_topic(group.topic.name)
    # Not by name, which a node may remember as of a moment ago.
    found = {each.name: each.uuid for each in groups.of_topic(topic)}
    if found.get(group.name, group.uuid) != group.uuid and topic.uuid == group.topic.uuid:
        raise GroupMoved(
            f"group {group.name:.80} was moved to another position; ask again"
        ) from None
