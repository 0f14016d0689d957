"""Clients of a world that are members of consumer groups, and work in transactions."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import world_threads
from group_history import Member, Slot, Transaction
from group_machines import run_action
from history import Place, Push
from programs import KEYS, OUTPUTS, TOPICS, Operation
from world_clients import RETRY_SECONDS, ROWS_MAX, Client, LostError, numbers_of
from world_threads import STALL_SECONDS_MAX

from wings_core.contracts.actions import (
    ActionBody,
    PublishedOffset,
    PublishedOffsets,
    StageAbort,
    StagePublish,
    TransactionBegin,
)
from wings_core.contracts.commits import CommitOffsets
from wings_core.contracts.consumer_groups import (
    SESSION_MS_MIN,
    GroupHeartbeat,
    ResetGroup,
    TopicSlotNumbers,
)
from wings_core.contracts.tickets import ScanTicket
from wings_core.errors import FencedMember, GroupNotFound, PublishFenced, StageNotFound, Unavailable
from wings_core.fetch.fetcher import Cancel
from wings_core.ingest.pending import PushStream
from wings_core.log import Log
from wings_core.metadata.stages import stage_entry
from wings_core.model import (
    ConsumerCommit,
    MemberEpoch,
    ProducerEpoch,
    PublishResult,
    Rejected,
    StageEntry,
)
from wings_core.partitions import UNPARTITIONED, Partition, partition_of_value, partition_value
from wings_server.flight.do_get import open_get

if TYPE_CHECKING:
    from log_world import World

T = TypeVar("T")

for _body in (
    *(CommitOffsets, GroupHeartbeat, PublishedOffsets, ResetGroup, ScanTicket),
    *(StageAbort, StagePublish, TransactionBegin),
):
    _body.model_rebuild()  # Once, not in each world.

ROWS_READ_MAX = 200
"""Most rows that a member works on in a transaction."""

BATCHES_OF_A_LIFE = 1 << 32
"""A writer counts its batches on from this times its epoch, as Wings's client does."""

LOST_CHANCE = 0.04
"""How often the answer of a server is lost, while there are faults."""

IN_FLIGHT_SECONDS = 2 * STALL_SECONDS_MAX
"""By then a call has been begun whose caller crashed: it may be slow, and the world may stall."""

WORK_SECONDS = 20
"""Longest time for which a member begins another round: less than worlds may take."""

ROUNDS_EACH = 4
"""How often a member looks for something to read, for each commit that it is to make."""

ABORT_CHANCE = 0.2

LINGER_SECONDS = SESSION_MS_MIN / 1_000 + 1.5
DAWDLE_SECONDS = 3.0
STEP_SECONDS = 0.5
"""How often a member that dawdles heartbeats."""

TRIES_MAX = 20
"""How often a commit is repeated until a member gives up, its outcome unknown."""


class Reads(NamedTuple):
    """What a member read in a partition: numbers of rows from an offset on."""

    start: int
    numbers: list[int]

    @property
    def span(self) -> tuple[int, int]:
        """The first offset, and the one after the last."""
        return self.start, self.start + len(self.numbers)


class GroupClient(Client):
    """A client that knows groups, too.

    Args:
        world: Its world.
        number: Its number in the world.
    """

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number)
        self._groups = world.groups
        self._epochs: dict[str, int] = {}
        """The epoch that this client began last, by writer."""
        self._producers: dict[str, tuple[ProducerEpoch, int]] = {}
        """The same of producers with names, and the time-out of their transactions."""
        self._members = 0

    # Operations. ##################################################################################

    def work(self, operation: Operation) -> None:
        """Be a member of the group `topic` for `rows` commits, or not for ever, then leave."""
        self._leave(self._work(operation))

    def vanish(self, operation: Operation) -> None:
        """Be such a member, and never say that it is over."""
        self._work(operation)

    def linger(self, operation: Operation) -> None:
        """Be a member that works on rows for longer than its session, once."""
        self._leave(self._work(operation, LINGER_SECONDS))

    def dawdle(self, operation: Operation) -> None:
        """Be a member that heartbeats while it works on rows, once, and gives up what it is to."""
        self._leave(self._work(operation, DAWDLE_SECONDS))

    def reset(self, operation: Operation) -> None:
        """Stop all members of the group `topic`, and have it begin at the start or the end."""
        group, groups = operation.topic, self._groups
        if group in groups.stopped:
            return
        groups.stopped.add(group)
        while groups.joining.get(group, 0):
            world_threads.sleep(RETRY_SECONDS)
        place = "earliest" if operation.rows % 2 else "latest"
        starts: dict[Place, int] = {}
        for topic in TOPICS:
            body = ResetGroup(consumer=group, topic=topic, to=place)
            answer = None
            while answer is None:
                try:
                    answer = self._act("group-reset", body)
                except LostError:  # It may be done yet, also once members are there again.
                    world_threads.sleep(IN_FLIGHT_SECONDS)
                    while any(not life.dead for life in groups.passed_on.get("group-reset", ())):
                        world_threads.sleep(RETRY_SECONDS)
                except FencedMember:  # Sessions of members that vanished have to end.
                    world_threads.sleep(RETRY_SECONDS)
                except GroupNotFound:  # It had no member yet.
                    answer = {"offsets": []}
            starts |= {_place(each): each["offset"] for each in answer["offsets"]}
        era = groups.eras[group] = groups.eras.get(group, 0) + 1
        groups.starts[group, era] = starts
        groups.stopped.discard(group)

    def audit(self, operation: Operation) -> None:
        """Read the outputs one after another: what the first shows a part of, both show whole."""
        order = sorted(OUTPUTS, reverse=operation.rows % 2 > 0)
        faults = self._world.wire.faults
        first, second = (operation._replace(topic=topic) for topic in order)
        if self.scan(first):
            seen = {row for known in self._history.rows.values() for row in known.values()}
            if self.scan(second) and self.scan(first) and faults == self._world.wire.faults:
                partly = self._groups.shown_in_part(self._history, seen)
                assert not partly, f"{partly} are visible in part"

    def settle(self, operation: Operation) -> None:
        """Once all else is done and nothing fails, work until the group has read all there is."""
        world = self._world
        while world.wire.fails or any(
            each.kind not in ("settle", "look") for each, _ in world.doing.values()
        ):
            world_threads.sleep(RETRY_SECONDS)
        member = self._member(operation.topic)
        while self._lags(operation.topic):
            self._round(member, operation)
            world_threads.sleep(RETRY_SECONDS)
        self._leave(member)

    # Members. #####################################################################################

    def _member(self, group: str) -> Member:
        self._members += 1
        return Member(group, f"m{self._number}-{self._members}")

    def _is_stopped(self, member: Member) -> bool:
        return member.group in self._groups.stopped

    def _work(self, operation: Operation, lingers: float = 0.0) -> Member:
        while operation.topic in self._groups.stopped:
            world_threads.sleep(RETRY_SECONDS)
        member, left = self._member(operation.topic), operation.rows
        until_ns = self._scheduler.now_ns + WORK_SECONDS * 10**9
        for _ in range(operation.rows * ROUNDS_EACH):
            if not left or self._is_stopped(member) or self._scheduler.now_ns > until_ns:
                break
            if self._round(member, operation, lingers):
                left, lingers = left - 1, 0.0
            world_threads.sleep(operation.milliseconds / 1_000)
        return member

    def _round(self, member: Member, operation: Operation, lingers: float = 0.0) -> bool:
        """Heartbeat, read what there is, and commit what comes of it; returns whether it did."""
        try:
            is_named, writer = self._writer(operation)
            while self._beat(member):
                pass
            reads = self._read_slots(member) if member.owned else {}
            if not reads:
                return False
            if operation.topic == "loose":
                self._commit_alone(member, reads, lingers)
            elif is_named:
                self._end(member, reads, writer, lingers)
            else:
                self._publish(member, reads, writer, lingers)
        except LostError:
            world_threads.sleep(RETRY_SECONDS)
            return False
        except FencedMember:
            member.drop()
        return True

    def _writer(self, operation: Operation) -> tuple[bool, str]:
        """Return whether a member is a producer with a name, and its name, once it has begun."""
        is_own, is_named = operation.partition == "c", operation.partition == "b"
        if is_own:
            is_named = operation.milliseconds % 2 > 0
        writer = f"{'n' if is_named else 't'}{self._number if is_own else ''}"
        if is_named and writer not in self._producers:
            self._join(writer)
        elif not is_named and writer not in self._epochs:
            answer = self._act("transaction-begin", TransactionBegin(writer=writer))
            self._epochs[writer] = answer["epoch"]
            self._groups.begins(writer, answer["epoch"], self._scheduler.now_ns)
        return is_named, writer

    def _beat(self, member: Member) -> bool:
        """Heartbeat; returns whether what the member owns has changed, which it is to say."""
        try:
            return self._say(member)
        except FencedMember:
            member.fenced = max(member.fenced, member.epoch)
            member.drop()
            return False

    def _linger(self, member: Member, seconds: float) -> None:
        """Let time pass before a commit: with heartbeats, or until they begin anew, too late."""
        is_long = seconds > DAWDLE_SECONDS
        longest = self._scheduler.random.randint(1, 2)
        steps = longest if is_long else int(seconds / STEP_SECONDS)
        for step in range(steps):
            world_threads.sleep(seconds if is_long and not step else STEP_SECONDS)
            with suppress(LostError):
                self._beat(member)

    def _say(self, member: Member) -> bool:
        """Heartbeat, and take what is answered."""
        groups, joins = self._groups, member.epoch == 0
        if joins and self._is_stopped(member):
            raise LostError
        sent_ns = self._scheduler.now_ns
        if joins:
            groups.joining[member.group] = groups.joining.get(member.group, 0) + 1
            member.era = groups.eras.get(member.group, 0)
        try:
            answer = self._act(
                "group-heartbeat",
                GroupHeartbeat(
                    consumer=member.group,
                    member=member.name,
                    member_epoch=member.epoch,
                    topics=tuple(TOPICS),
                    session_ms=SESSION_MS_MIN,
                    owned=tuple(
                        TopicSlotNumbers(topic=topic, slots=tuple(slots))
                        for topic, slots in _by_topic(member.owned)
                    ),
                ),
            )
        finally:
            if joins:
                groups.joining[member.group] -= 1
        member.session_ends_ns = sent_ns + SESSION_MS_MIN * 10**6
        member.epoch = answer["member_epoch"]
        if answer["assignment"] is not None:
            member.target = frozenset(
                (each["topic"].rpartition("/")[2], slot)
                for each in answer["assignment"]
                for slot in each["slots"]
            )
        member.gone |= member.leaving
        member.leaving = member.owned - member.target
        if member.leaving:
            member.owned &= member.target
            member.at = {}
            return True
        new = member.target - member.owned
        member.gone -= new
        groups.take(member, new, self._scheduler.now_ns)
        member.owned |= new
        return bool(new)

    def _leave(self, member: Member) -> None:
        if member.epoch:
            member.owned = frozenset()
            body = GroupHeartbeat(consumer=member.group, member=member.name, member_epoch=-1)
            self._until_known(lambda: self._act("group-heartbeat", body))

    def _read_slots(self, member: Member) -> dict[Place, Reads]:
        """Read the partitions of the slots that a member owns, from its group's offsets on."""
        began_ns = self._scheduler.now_ns
        found: dict[Place, Reads] = {}

        def read(log: Log) -> None:
            for topic, slots in _by_topic(member.owned):
                ticket = ScanTicket(
                    topic=topic, partitions="all", slots=tuple(slots), consumer=member.group
                )
                for chunk in open_get(log, ticket).chunks(Cancel()):
                    numbers, first = numbers_of(chunk), 0
                    for partition, start, _, rows in chunk.ranges:
                        some = numbers[first : first + rows]
                        place, first = (topic, str(partition)), first + rows
                        self._history.see(place, start, some, self._scheduler.now_ns)
                        before = found.setdefault(place, Reads(start, []))
                        assert before.span[1] == start, f"{place}: {start} after {before.span}"
                        before.numbers.extend(some)

        self._call(read)
        for place, reads in found.items():
            self._groups.read(member, place, reads.start, began_ns, self._scheduler.now_ns)
        left = ROWS_READ_MAX
        some: dict[Place, Reads] = {}
        for place, (start, numbers) in found.items():
            if left:
                some[place] = Reads(start, numbers[:left])
                left -= len(some[place].numbers)
        return some

    def _lags(self, group: str) -> bool:
        """Return whether there are rows that a group has not read; True where that is unknown."""

        def lags(log: Log) -> bool:
            committed = committed_of(log, group)
            return any(
                state.next_offset > committed.get((topic, str(state.partition)), 0)
                for topic in TOPICS
                for state in log.registry.partition_states(self._topic(log, topic).uuid)
            )

        try:
            return self._ask(lags)
        except LostError:
            return True

    # Commits. #####################################################################################

    def _commit_alone(self, member: Member, reads: dict[Place, Reads], lingers: float) -> None:
        """Commit offsets of what was worked on, without a transaction."""
        for place, some in reads.items():
            known = self._groups.processed.setdefault((member.group, member.era, place), set())
            known.update(range(*some.span))
        body: Any = {
            "consumer": member.group,
            "member": member.name,
            "member_epoch": member.epoch,
            "offsets": list(_entries(reads)),
        }
        epoch = member.epoch
        self._linger(member, lingers)
        is_barred = member.is_barred(epoch, reads)
        try:
            self._act("commit-offsets", CommitOffsets.model_validate(body))
        except LostError:
            member.drop()  # Where it stands is unknown.
            raise
        assert not is_barred, f"{member.name} committed {reads.keys()}, which it had lost"
        self._committed(member, reads)

    def _publish(
        self, member: Member, reads: dict[Place, Reads], writer: str, lingers: float
    ) -> None:
        """Publish stages and offsets, as Wings's transactions do."""
        epoch = self._epochs[writer]
        outputs = [each for topic in OUTPUTS for each in self._outputs(topic, reads)]
        transaction = self._begin(member, reads, writer, epoch, outputs)
        stages = tuple(f"{transaction.name}-{number}" for number in range(len(outputs)))

        def stage(log: Log) -> None:
            for push, name in zip(outputs, stages, strict=True):
                self._add(log, push, StageEntry(name, name, first=True))

        body = StagePublish(
            writer=writer,
            batch=epoch * BATCHES_OF_A_LIFE + len(self._groups.transactions),
            stages=stages,
            epoch=epoch,
            offsets=PublishedOffsets(
                consumer=member.group,
                member=member.name,
                member_epoch=member.epoch,
                offsets=tuple(map(PublishedOffset.model_validate, _entries(reads))),
            ),
        )

        def commit() -> dict[Place, int]:
            answer = self._act("stage-publish", body)
            return {_place(each): each["start_offset"] for each in answer["committed"]}

        try:
            self._call(stage)
            self._linger(member, lingers)
            if self._scheduler.random.random() < ABORT_CHANCE:
                transaction.outcome = False
                self._act("stage-abort", StageAbort(writer=writer, stages=stages))
            else:
                self._commit(member, transaction, reads, commit)
        except PublishFenced:
            self._epochs.pop(writer, None)

    def _end(self, member: Member, reads: dict[Place, Reads], writer: str, lingers: float) -> None:
        """Commit outputs and offsets as a producer with a name, as those of Kafka do."""
        life, timeout_ms = self._producers[writer]
        outputs = [each for topic in OUTPUTS for each in self._outputs(topic, reads)]
        transaction = self._begin(member, reads, writer, life.epoch, outputs)
        places = [(push.topic, Partition(part)) for push in outputs for part in push.rows]

        def add_partitions(log: Log) -> None:
            parts = [(self._topic(log, topic), partition) for topic, partition in places]
            log.metadata.transactions.add_partitions(writer, life, parts)

        def stage(log: Log) -> None:
            for push, (topic, partition) in zip(outputs, places, strict=True):
                entry = stage_entry(writer, life, self._topic(log, topic).uuid, partition)
                self._add(log, push, entry)

        def add_offsets(log: Log) -> None:
            offsets = tuple(
                (self._topic(log, topic), Partition(partition), some.span[1])
                for (topic, partition), some in reads.items()
            )
            fence = MemberEpoch(member.name, member.epoch)
            commit = ConsumerCommit(member.group, offsets, fence)
            log.metadata.transactions.add_offsets(writer, life, commit)

        def end(log: Log) -> PublishResult:
            return log.metadata.transactions.end(writer, life, commit=True)

        def commit() -> dict[Place, int]:
            committed = self._ask(end).committed
            return {
                (each.topic.topic, str(each.partition)): each.start_offset for each in committed
            }

        try:
            with self._aborting(transaction, life):
                self._ask(add_partitions)
                transaction.timeout_ns = timeout_ms * 10**6
                transaction.deadline_ns = self._scheduler.now_ns + transaction.timeout_ns
                self._call(stage)
                self._ask(add_offsets)
                self._linger(member, lingers)
                if self._scheduler.random.random() < ABORT_CHANCE:
                    raise LostError
                self._commit(member, transaction, reads, commit)
        except (PublishFenced, StageNotFound):  # Another one has joined, or it was late.
            self._producers.pop(writer, None)

    def _join(self, writer: str) -> None:
        """Begin the next life of a producer with a name."""
        timeout_ms = self._scheduler.random.choice((1_000, 5_000, 60_000))
        life = self._ask(lambda log: log.metadata.transactions.join(writer, timeout_ms))
        self._producers[writer] = life, timeout_ms
        self._groups.begins(writer, life.epoch, self._scheduler.now_ns)

    @contextmanager
    def _aborting(self, transaction: Transaction, life: ProducerEpoch) -> Generator[None]:
        """Abort a transaction where the block fails."""

        def abort(log: Log) -> PublishResult:
            return log.metadata.transactions.end(transaction.writer, life, commit=False)

        try:
            yield
        except (LostError, StageNotFound, FencedMember):
            if transaction.tried_ns is None:
                transaction.outcome = False
            with suppress(StageNotFound):  # It was not begun.
                self._until_known(lambda: self._ask(abort))
            raise
        except PublishFenced:
            if transaction.tried_ns is None:
                transaction.outcome = False
            raise

    def _begin(
        self,
        member: Member,
        reads: Mapping[Place, Reads],
        writer: str,
        epoch: int,
        outputs: list[Push],
    ) -> Transaction:
        spans = {place: some.span for place, some in reads.items()}
        name = f"{writer}-{epoch}-{len(self._groups.transactions)}"
        transaction = Transaction(
            name, writer, epoch, member.group, member.era, member.epoch, spans, outputs
        )
        self._groups.transactions.append(transaction)
        for push in outputs:
            push.together = name
        return transaction

    def _commit(
        self,
        member: Member,
        transaction: Transaction,
        reads: Mapping[Place, Reads],
        commit: Callable[[], Mapping[Place, int]],
    ) -> None:
        """Commit a transaction, again until the outcome is known, or for some times."""
        transaction.tried_ns = self._scheduler.now_ns
        transaction.is_barred = member.is_barred(transaction.member_epoch, reads)
        is_known = True
        for _ in range(TRIES_MAX):
            try:
                placed = commit()
            except LostError:
                is_known = False
                world_threads.sleep(RETRY_SECONDS)
            except (FencedMember, StageNotFound):
                transaction.outcome = False
                raise
            except PublishFenced as refused:
                is_known = is_known and not refused.facts.get("in_doubt")
                transaction.outcome = False if is_known else None
                raise
            else:
                transaction.outcome = True
                for push in transaction.pushes if placed else ():
                    parts = {part: placed[push.topic, part] for part in push.rows}
                    push.acknowledge(parts, self._scheduler.now_ns)
                self._committed(member, reads)
                return
        member.drop()
        raise PublishFenced("its outcome stays unknown: the writer begins anew")

    def _committed(self, member: Member, reads: Mapping[Place, Reads]) -> None:
        ends = {place: some.span[1] for place, some in reads.items()}
        member.at.update(ends)
        self._groups.commit(member, ends, self._scheduler.now_ns)

    def _outputs(self, topic: str, reads: Mapping[Place, Reads]) -> list[Push]:
        """Return a push for each partition of an output: a row for each read, or for all."""
        count = sum(len(some.numbers) for some in reads.values()) if OUTPUTS[topic] else 1
        first = len(self._history.pushes) * ROWS_MAX
        rows: dict[str, list[int]] = {}
        for number in range(first, first + count):
            key = str(UNPARTITIONED) if OUTPUTS[topic] is None else f'"{KEYS[number % len(KEYS)]}"'
            rows.setdefault(key, []).append(number)
        pushes = [Push(topic, {key: numbers}, None) for key, numbers in rows.items()]
        self._history.pushes += pushes
        return pushes

    def _add(self, log: Log, push: Push, entry: StageEntry) -> None:
        result = log.group_commit.submit(
            PushStream(), self._prepare(log, push, None, entry), awaited=True
        ).outcome()
        if isinstance(result, Rejected):
            raise result.error

    # Calls. #######################################################################################

    def _act(self, name: str, body: ActionBody) -> Any:
        """Run an action at a machine; returns its answer."""
        return self._ask(lambda log: run_action(log, name, body))

    def _ask(self, work: Callable[[Log], T]) -> T:
        """Call a log that may be without its groups for a while, and whose answers are lost.

        Raises:
            LostError: As of `_call`.
        """

        def ask(log: Log) -> T:
            try:
                return work(log)
            except Unavailable as error:
                raise LostError from error

        answer = self._call(ask)
        if self._world.wire.fails and self._scheduler.random.random() < LOST_CHANCE:
            raise LostError
        return answer

    def _until_known(self, work: Callable[[], T]) -> T:
        while True:
            try:
                return work()
            except LostError:
                world_threads.sleep(RETRY_SECONDS)


def committed_of(log: Log, group: str) -> dict[Place, int]:
    """Return the offsets of a group."""
    found = log.registry.get_offsets(group)
    return {(each.topic.topic, str(each.partition)): each.offset for each in found}


def _by_topic(slots: Iterable[Slot]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for topic, some in groupby(sorted(slots), itemgetter(0)):
        yield topic, tuple(slot for _, slot in some)


def _entries(reads: Mapping[Place, Reads]) -> Iterator[dict[str, Any]]:
    """Yield next offsets, as bodies of actions name them."""
    for (topic, partition), some in reads.items():
        value = partition_value(Partition(partition))
        yield {"topic": topic, "partition": value, "offset": some.span[1]}


def _place(entry: Mapping[str, Any]) -> Place:
    """Return the place of an entry of an answer."""
    return entry["topic"].rpartition("/")[2], str(partition_of_value(entry["partition"]))
