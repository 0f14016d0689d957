"""What workers of share groups saw, and what must hold of it, whatever failed.

A worker may count on a lease for the duration of the lock from the moment it asked. What it was
told is done stays done, also after crashes and losses of power.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from history import Place

Message = tuple[Place, int]
"""A place, and an offset in it."""


@dataclass(eq=False)
class Lease:
    """Messages `[first, last]` of a place, leased to a worker."""

    place: Place
    first: int
    last: int
    text: str
    member: str
    life: object
    """The process that granted it; a later one may know nothing of it."""
    until_ns: int
    """The worker may count on it until then, exclusive."""
    is_over: bool = False
    """Whether the worker asked to end it, or was told that it is no more."""

    @property
    def messages(self) -> Iterator[Message]:
        """Its messages, in order."""
        return ((self.place, offset) for offset in range(self.first, self.last + 1))


@dataclass
class ShareHistory:
    """What workers of one group did and saw.

    Attributes:
        limit: The delivery limit.
        is_ordered: Whether messages of a partition come in order, under one lease at a time.
        leases: All, in the order in which workers got them.
        done: When a worker was told that a message is finished, by message.
        rejected: Those of them that it rejected.
        tried: How often workers asked to finish a message, and were not refused, by message.
        lost: How many acquires had no answer, or lasted as long as the lock; each may have counted
            as a delivery.
    """

    limit: int
    is_ordered: bool
    leases: list[Lease] = field(default_factory=list[Lease])
    done: dict[Message, int] = field(default_factory=dict[Message, int])
    rejected: set[Message] = field(default_factory=set[Message])
    tried: Counter[Message] = field(default_factory=Counter[Message])
    deliveries: Counter[Message] = field(default_factory=Counter[Message])
    lost: int = 0

    def grant(self, lease: Lease, count: int, began_ns: int, now_ns: int) -> None:
        """Note a lease, which was asked for at `began_ns`, and check that none is beside it."""
        assert 1 <= count <= self.limit, f"delivery {count} of {lease}"
        is_late = lease.until_ns <= now_ns  # By now another may have it.
        for other in () if is_late else self.leases:
            if other.is_over or other.until_ns <= now_ns or other.place != lease.place:
                continue
            overlap = other.first <= lease.last and lease.first <= other.last
            beside = overlap or self.is_ordered
            assert not beside, f"at {now_ns} {lease} was leased beside {other}"
        for offset in range(lease.first if self.is_ordered else 0):
            assert self._may_be_finished((lease.place, offset)), f"{offset} comes before {lease}"
        for message in lease.messages:
            done_ns = self.done.get(message, now_ns)
            assert done_ns >= began_ns, f"{message} was finished at {done_ns}, before {began_ns}"
            self.deliveries[message] += 1
        self.leases.append(lease)

    def finish(self, lease: Lease, now_ns: int, *, rejected: bool) -> None:
        """Note that a worker was told that a lease's messages are finished."""
        self.done.update((message, now_ns) for message in lease.messages)
        if rejected:
            self.rejected.update(lease.messages)

    def check(self, ends: Mapping[Place, int], letters: Sequence[Message] | None) -> None:
        """Check a group whose workers found it at its end.

        Args:
            ends: The next offset of each place.
            letters: The messages of which there are dead letters; None: the group writes none.
        """
        for place, end in ends.items():
            for message in ((place, offset) for offset in range(end)):
                assert self._may_be_finished(message), f"{message} was finished by nobody"
        if letters is None:
            return
        twice = [message for message, count in Counter(letters).items() if count > 1]
        assert not twice, f"dead letters of {twice} were written twice"
        missing = self.rejected - set(letters)
        assert not missing, f"{missing} were rejected, and there are no dead letters"
        for message in letters:
            assert self._may_be_finished(message), f"{message} was buried by nobody"

    def _may_be_finished(self, message: Message) -> bool:
        """Tell whether a worker asked to finish a message, or it may be at the limit."""
        return self.tried[message] > 0 or self.deliveries[message] + self.lost >= self.limit
