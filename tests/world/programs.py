"""Programs of a world: what each client does, and when machines crash; drawn from a seed.

A program is plain data, so that one that fails can be made smaller and printed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, TypeVar

T = TypeVar("T")

KEYS = ("a", "b", "c")
TOPICS = {"plain": None, "keyed": "k"}
"""Topics and their key columns."""
NODES = 2
"""Nodes of a world that has some."""
OPERATIONS_MAX = (3, 4, 6, 14)
"""Most operations of each client: small worlds take a third of the time of large ones."""
OUTPUTS = {"out": "k", "done": None}
"""Topics that members of groups write to, where there are groups."""
SHARE_TOPIC, DEAD_LETTERS = "keyed", "dead"
"""Topics of the share group, where there is one, and of its dead letters."""
SHARE_KINDS = ("any", "any", "ordered", "letters")
"""Messages in any order, in order, or in any with dead letters."""
POINTS = 2_500
"""Scheduling points within which machines crash; a program without crashes passes about as many."""


class Operation(NamedTuple):
    """One step of a client; what the numbers mean is said at the client's method of its name."""

    kind: str
    topic: str = "plain"
    partition: str = "a"
    rows: int = 1
    milliseconds: int = 0


class Crash(NamedTuple):
    """The end of a machine."""

    point: int
    """Scheduling point at which it comes."""
    machine: int
    power: bool = False
    """Whether power is lost, of nodes all at once; else what the process wrote stays."""


class DiskFault(NamedTuple):
    """A while in which the disks fail calls."""

    point: int
    """Scheduling point at which it begins."""
    kind: str
    """What `fail_calls` takes: "full", "write" or "sync"."""
    ending: str
    """How the paths of the files end."""
    after: int
    """How many calls succeed before."""
    calls: int
    """How many fail."""
    milliseconds: int


DISK_KINDS = ("full", "full", "write", "sync", "sync")
DISK_ENDINGS = ("", "-wal", "/segments/*")
"""Of all files, of the log of metadata, of segments."""


@dataclass(frozen=True)
class Program:
    """One world.

    Attributes:
        schedule: Seed of all that is not in the program.
        nodes: Nodes of a metadata service; 0: one server with a directory.
        clients: The operations of each.
        crashes: In their order.
        disk_faults: In their order.
        merges: Whether maintenance merges pages into segments as soon as it may.
        groups: Whether machines run consumer groups.
        shares: Kind of the share group, of `SHARE_KINDS`; empty: there is none.
    """

    schedule: str
    nodes: int
    clients: tuple[tuple[Operation, ...], ...]
    crashes: tuple[Crash, ...]
    merges: bool = False
    disk_faults: tuple[DiskFault, ...] = ()
    groups: bool = False
    shares: str = ""

    @classmethod
    def of(cls, seed: int) -> "Program":
        """Draw the program of a seed.

        Every third is of nodes, every fourth merges, and every seventh has a consumer group, or, on
        one server, a share group.
        """
        random = Random(f"program {seed}")
        nodes = NODES if seed % 3 == 2 else 0
        kinds = [
            "produce",
            "read",
            *["drain"] * (nodes and random.randrange(2)),
            *random.choices(tuple(_KINDS), k=random.randint(0, 3)),
        ]
        groups = seed % 7 == 4
        if groups:
            kinds = ["drain"]
        hot = random.choice(tuple(TOPICS)), random.choice(KEYS)
        most = random.choice(OPERATIONS_MAX)
        clients = [_client(random, kind, hot, most) for kind in kinds]
        clients += clients[1:2] * random.choice((0, 0, 1, 2))  # Readers go together, often.
        if groups:
            clients = [*clients[:1], *_group_clients(random)]
        shares = ""
        if seed % 7 == 6 and not nodes:
            shares = random.choice(SHARE_KINDS)
            clients = [*clients[:1], *_share_clients(random)]
        if any(each.kind == "publish" for operations in clients for each in operations):
            clients.append((Operation("look"),))
        end = POINTS * (most + 4) // 18
        points = random.sample(range(200, end), random.choice((0, 1, 1, 2, 4)))
        crashes = tuple(
            Crash(point, random.randrange(nodes + 1), power=random.random() < 0.5)
            for point in sorted(points)
        )
        faults = tuple(
            _disk_fault(random, point)
            for point in sorted(random.sample(range(200, end), random.choice((0, 0, 0, 1, 3))))
        )
        schedule, merges = f"schedule {seed}", seed % 4 == 1
        return cls(schedule, nodes, tuple(clients), crashes, merges, faults, groups, shares)

    @classmethod
    def all_of(cls, nodes: int, merges: bool) -> "Program":
        """Return one in which clients do everything, each at its topic, and nothing fails."""
        kinds = [kind for some in _KINDS.values() for kind in some]
        clients = [
            tuple(Operation(kind, topic, rows=2, milliseconds=5) for kind in kinds)
            for topic in TOPICS
        ]
        return cls("all", nodes, tuple(clients), (), merges)

    @property
    def topics(self) -> dict[str, str | None]:
        """All topics and their key columns."""
        return {**TOPICS, **(OUTPUTS if self.groups else {})}

    def smaller(self) -> Iterator["Program"]:
        """Yield programs with a client, a crash, or some operations less."""
        for index in range(len(self.clients)):
            yield replace(self, clients=_without(self.clients, index, 1))
        for index in range(len(self.crashes)):
            yield replace(self, crashes=_without(self.crashes, index, 1))
        for index in range(len(self.disk_faults)):
            yield replace(self, disk_faults=_without(self.disk_faults, index, 1))
        for index, operations in enumerate(self.clients):
            size = max(1, len(operations) // 2)
            while size:
                for first in range(0, len(operations), size):
                    clients = list(self.clients)
                    clients[index] = _without(operations, first, size)
                    yield replace(self, clients=tuple(clients))
                size //= 2

    def __str__(self) -> str:
        """Return it as lines."""
        kind = f"{', merges' * self.merges}{', groups' * self.groups}"
        kind += f", share group: {self.shares}" * bool(self.shares)
        lines = [f"{self.schedule!r}, {self.nodes or 'no'} nodes{kind}"]
        lines += [f"  {each}" for each in (*self.crashes, *self.disk_faults)]
        for number, operations in enumerate(self.clients):
            lines += [f"  client {number}:", *(f"    {each}" for each in operations)]
        return "\n".join(lines)


def shrink(program: Program, fails: Callable[[Program], bool], tries: int) -> Program:
    """Return the smallest failing program that so many tries find."""
    found = True
    while found:
        found = False
        for each in program.smaller():
            tries -= 1
            if tries < 0:
                return program
            if fails(each):
                program, found = each, True
                break
    return program


def _without(items: Sequence[T], first: int, count: int) -> tuple[T, ...]:
    return (*items[:first], *items[first + count :])


_KINDS = {
    "produce": ("push", "push", "burst", "send", "send", "pause", "pause"),
    "read": ("fetch", "tail", "tail", "follow", "scan", "pause"),
    "consume": ("fetch", "commit", "tail", "commit", "pause"),
    "mix": ("push", "burst", "fetch", "scan", "commit", "send", "publish", "drain"),
    "drain": ("drain", "drain", "drain", "push", "pause"),
    "stage": ("publish", "publish", "push", "pause"),
    "upkeep": ("drain", "delete", "maintain", "pause", "pause", "reclaim"),
}


def _disk_fault(random: Random, point: int) -> DiskFault:
    count = random.choice((1, 1, 3, 1_000))
    return DiskFault(
        point,
        random.choice(DISK_KINDS),
        random.choice(DISK_ENDINGS),
        random.choice((0, 0, 1, 3)),
        count,
        random.choice((100, 700, 3_000)),
    )


def _client(random: Random, kind: str, hot: tuple[str, str], most: int) -> tuple[Operation, ...]:
    """Draw a client's operations, most of them at the place where most clients are."""
    topic, partition = hot
    if random.random() < 0.2:
        topic = random.choice(tuple(TOPICS))
    return tuple(
        Operation(
            random.choice(_KINDS[kind]),
            topic,
            partition if random.random() < 0.8 else random.choice(KEYS),
            random.choice((1, 1, 1, 2, 3, 20, 120)),
            random.choice((0, 1, 5, 50, 700, 2_000)),
        )
        for _ in range(random.randint(2, most))
    )


def _group_clients(random: Random) -> list[tuple[Operation, ...]]:
    """Draw what groups read, members of one, one that resets or reads, and the last member."""
    group = random.choice(("exact", "exact", "exact", "loose"))
    feeds = [_feed(random, topic) for topic in TOPICS]
    members = [
        tuple(
            Operation(
                random.choice(("work", "work", "vanish", "linger", "dawdle", "dawdle")),
                group,
                random.choice(KEYS),
                random.choice((1, 2, 4)),
                random.choice((200, 301, 500)),
            )
            for _ in range(random.randint(1, 2))
        )
        for _ in range(random.randint(2, 3))
    ]
    pause = Operation("pause", milliseconds=random.choice((1_500, 3_000, 5_000)))
    other = Operation(random.choice(("reset", "audit")), group, rows=random.randint(1, 2))
    last = Operation("settle", group, random.choice(KEYS))
    return [*feeds, *members, (pause, other) * 2, (last,)]


def _share_clients(random: Random) -> list[tuple[Operation, ...]]:
    """Draw what a share group reads, its workers, and the last of them."""
    workers = [
        tuple(
            Operation(
                random.choice(("take", "take", "take", "neglect", "renew")),
                SHARE_TOPIC,
                rows=random.choice((1, 2, 5, 50)),
                milliseconds=random.choice((0, 50, 700, 1_500, 2_500)),
            )
            for _ in range(random.randint(2, 6))
        )
        for _ in range(random.randint(2, 4))
    ]
    last = Operation("finish", SHARE_TOPIC, rows=random.choice((20, 50, 100)))
    return [_feed(random, SHARE_TOPIC), *workers, (last,)]


def _feed(random: Random, topic: str) -> tuple[Operation, ...]:
    """Draw pushes to a topic over some seconds."""
    return tuple(
        each
        for _ in range(random.randint(3, 8))
        for each in (
            Operation(
                random.choice(("push", "push", "burst", "send")),
                topic,
                random.choice(KEYS),
                random.choice((1, 3, 20)),
                random.choice((0, 1)),
            ),
            Operation("pause", milliseconds=random.choice((200, 500, 900))),
        )
    )
