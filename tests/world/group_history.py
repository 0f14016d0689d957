"""The history of a world's consumer groups and transactions, and what must hold of it.

A member reads rows of the inputs and pushes one output row for each, in transactions that commit
its group's offsets, too. So the committed transactions of a group tile what it has read: each began
where the one before it ended. A reset of the group begins an *era*, with a tiling of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from history import History, Place, Push
from world_threads import Life

from wings_core.partitions import Partition, slot_of

Slot = tuple[str, int]
"""A topic and a slot of it."""


@dataclass(eq=False)
class Member:
    """A member of a group, as its program knows it."""

    group: str
    name: str
    era: int = 0
    epoch: int = 0
    """0: it joins with its next heartbeat."""
    owned: frozenset[Slot] = frozenset()
    target: frozenset[Slot] = frozenset()
    session_ends_ns: int = 0
    at: dict[Place, int] = field(default_factory=dict[Place, int])
    """Where it reads on, after what it committed."""
    leaving: frozenset[Slot] = frozenset()
    """What it gave up, and the server has not answered to that yet."""
    gone: frozenset[Slot] = frozenset()
    """What it gave up, as the server knows."""
    fenced: int = 0
    """The last epoch that the server told it was over."""

    def is_barred(self, epoch: int, places: Iterable[Place]) -> bool:
        """Tell whether a commit of an epoch is refused for sure from now on."""
        slots = {(topic, slot_of(Partition(partition))) for topic, partition in places}
        return epoch <= self.fenced or not slots.isdisjoint(self.gone)

    def drop(self) -> None:
        """Own nothing any more; join anew."""
        self.epoch = self.session_ends_ns = 0
        self.owned = self.target = self.leaving = self.gone = frozenset()
        self.at = {}


@dataclass(eq=False)
class Transaction:
    """Outputs and offsets of a group that a member committed together, or tried to."""

    name: str
    writer: str
    epoch: int
    """The life of the writer that it is of."""
    group: str
    era: int
    member_epoch: int
    spans: Mapping[Place, tuple[int, int]]
    """First and next offset of what was read of each partition."""
    pushes: list[Push]
    deadline_ns: int | None = None
    """It must not be committed once an abort of what is late began after this; None: it may."""
    timeout_ns: int = 0
    """How long it may be open."""
    tried_ns: int | None = None
    """When its commit was first asked for; None: never."""
    outcome: bool | None = None
    """Whether it was committed; None: unknown."""
    is_barred: bool = False
    """Whether the server knew, when it was tried, that its member had lost what it read."""


@dataclass
class GroupHistory:
    """What members did and saw.

    Attributes:
        stopped: Groups whose members leave, to be reset.
        joining: How many members of each group are about to join.
        eras: The era of each group; 0 where it was never reset.
        starts: Where each group's reset of an era had it begin, by place.
        lives: Lives of writers with the time at which each was known to have begun.
        passed_on: Lives that run actions which other machines passed on to them, by name.
        looks: When each abort of late transactions began and ended.
        opened: When the store was opened, by a life of its machine.
        processed: Offsets that members of a group worked on without transactions.
    """

    stopped: set[str] = field(default_factory=set[str])
    joining: dict[str, int] = field(default_factory=dict[str, int])
    eras: dict[str, int] = field(default_factory=dict[str, int])
    starts: dict[tuple[str, int], dict[Place, int]] = field(
        default_factory=dict[tuple[str, int], dict[Place, int]]
    )
    lives: dict[str, list[tuple[int, int]]] = field(
        default_factory=dict[str, list[tuple[int, int]]]
    )
    passed_on: dict[str, list[Life]] = field(default_factory=dict[str, list[Life]])
    looks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    opened: list[int] = field(default_factory=list[int])
    transactions: list[Transaction] = field(default_factory=list[Transaction])
    processed: dict[tuple[str, int, Place], set[int]] = field(
        default_factory=dict[tuple[str, int, Place], set[int]]
    )
    _holders: dict[tuple[str, Slot], Member] = field(default_factory=dict[tuple[str, Slot], Member])
    _committed: dict[tuple[str, int, Place], list[tuple[int, int]]] = field(
        default_factory=dict[tuple[str, int, Place], list[tuple[int, int]]]
    )
    """Offsets that were committed, with the times at which that was known."""

    def take(self, member: Member, slots: Iterable[Slot], now_ns: int) -> None:
        """Note that a member begins to read slots, which no other one reads now."""
        for slot in slots:
            other = self._holders.get((member.group, slot), member)
            if other is not member and slot in other.owned:
                assert now_ns >= other.session_ends_ns, (
                    f"{member.name} takes {slot}, which {other.name} reads"
                )
            self._holders[member.group, slot] = member

    def read(self, member: Member, place: Place, start: int, began_ns: int, ended_ns: int) -> None:
        """Note where a read of a member began, by when it was asked for and had ended.

        No commit before it is lost. A reset is: a member whose session is over may read after it.
        """
        is_reset = member.group in self.stopped or self.eras.get(member.group, 0) != member.era
        if is_reset and ended_ns >= member.session_ends_ns:
            return
        if place in member.at:
            assert start == member.at[place], f"{member.at[place]} of {place} became {start}"
        found = self._committed.get((member.group, member.era, place), ())
        least = max((offset for time, offset in found if time <= began_ns), default=0)
        assert start >= least, f"{member.group} went back from {least} to {start} of {place}"

    def commit(self, member: Member, ends: Mapping[Place, int], now_ns: int) -> None:
        """Note that a member's commit of next offsets was acknowledged."""
        for place, offset in ends.items():
            known = self._committed.setdefault((member.group, member.era, place), [])
            known.append((now_ns, offset))

    def begins(self, writer: str, epoch: int, now_ns: int) -> None:
        """Note that a life of a writer has begun."""
        self.lives.setdefault(writer, []).append((epoch, now_ns))

    def shown_in_part(self, history: History, seen: set[int]) -> list[str]:
        """Return transactions of which some rows were seen by a time, and not all are known."""
        known = _known(history)
        return [
            each.name
            for each in self.transactions
            if not _rows(each).isdisjoint(seen) and not _rows(each) <= known
        ]

    def check(self, history: History, committed: Callable[[str], Mapping[Place, int]]) -> None:
        """Check all of it at the end.

        Args:
            history: The world's, with all rows that are there.
            committed: Returns the offsets of a group.
        """
        known = _known(history)
        spans: dict[tuple[str, int, Place], list[tuple[int, int]]] = {}
        for each in self.transactions:
            if _rows(each).isdisjoint(known):
                assert each.outcome is not True, f"{each.name} was committed, and is not there"
                continue
            assert each.outcome is not False, f"{each.name} was refused, and is there"
            tried_ns = each.tried_ns
            assert tried_ns is not None, f"{each.name} is there, and was not committed"
            assert not each.is_barred, f"{each.name} is there, though its member had lost a slot"
            self._check_fence(each, tried_ns)
            for place, span in each.spans.items():
                spans.setdefault((each.group, each.era, place), []).append(span)
        for (group, era, place), some in spans.items():
            at = self._start(group, era, place)
            for first, end in sorted(some):
                assert first == at, f"{group} read {place} up to {at}, then from {first}"
                at = end
            if era == self.eras.get(group, 0):
                found = committed(group).get(place, 0)
                assert found == at, f"{group} worked on {place} up to {at}, committed is {found}"
        for (group, era, place), offsets in self.processed.items():
            if era == self.eras.get(group, 0):
                want = range(self._start(group, era, place), committed(group).get(place, 0))
                missed = set(want) - offsets
                assert not missed, f"{group} committed past {sorted(missed)[:5]} of {place}"

    def _check_fence(self, each: Transaction, tried_ns: int) -> None:
        """Check that what is there was not asked for once its writer was fenced, or it was late."""
        for epoch, begun_ns in self.lives[each.writer]:
            assert epoch <= each.epoch or begun_ns >= tried_ns, (
                f"{each.name} of epoch {each.epoch} is there, though {epoch} had begun"
            )
        late_ns = each.deadline_ns
        if late_ns is not None:
            opened_ns = max((time for time in self.opened if time < tried_ns), default=0)
            if opened_ns > late_ns - each.timeout_ns:
                # The clock of the store may be behind: the next abort allows the timeout anew.
                ends = (end for begin, end in self.looks if begin > opened_ns)
                late_ns = max(late_ns, next(ends, tried_ns) + each.timeout_ns)
            looks = [look for look in self.looks if late_ns < look[0] and look[1] < tried_ns]
            assert not looks, f"{each.name} is there, though it was late"

    def _start(self, group: str, era: int, place: Place) -> int:
        return self.starts.get((group, era), {}).get(place, 0)


def _rows(transaction: Transaction) -> set[int]:
    return {row for push in transaction.pushes for some in push.rows.values() for row in some}


def _known(history: History) -> set[int]:
    return {row for known in history.rows.values() for row in known.values()}
