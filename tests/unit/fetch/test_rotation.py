"""The rotation of the partitions of one read: whatever happens, each has its turn."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wings_core.fetch.cursors import UNKNOWN, PartitionCursor, Rotation
from wings_core.partitions import Partition

PARTITIONS = [Partition(str(number)) for number in range(8)]


def cursor(partition: Partition, offset: int, stop: int) -> PartitionCursor:
    return PartitionCursor(partition, offset, stop, stop, clamps=False)


class RotationMachine(RuleBasedStateMachine):
    """Reads partitions by turns, as a reader does, and keeps its own account of them."""

    def __init__(self) -> None:
        super().__init__()
        self.rotation = Rotation()
        self.offsets: dict[Partition, int] = {}
        self.stops: dict[Partition, int] = {}
        self.waited: dict[Partition, int] = {}
        """How many turns of others each has waited for, while it had rows."""

    @rule(partition=st.sampled_from(PARTITIONS), rows=st.integers(0, 5))
    def commit(self, partition: Partition, rows: int) -> None:
        self.stops[partition] = self.stops.get(partition, 0) + rows
        known = self.rotation.cursors.get(partition)
        if known is None:
            self.offsets[partition] = 0
            self.rotation.add_all([cursor(partition, 0, self.stops[partition])])
        else:
            self.rotation.extend(known, self.stops[partition])

    @precondition(lambda self: self.rotation.ready > 0)
    @rule(data=st.data())
    def take_a_turn(self, data: st.DataObject) -> None:
        each = data.draw(st.integers(1, 4), label="rows each")
        rows_max = data.draw(st.integers(each, 20), label="rows in all")
        turn = self.rotation.turn(each, rows_max, data.draw(st.integers(1, 9), label="cursors"))
        assert turn
        assert sum(min(each, found.stop - found.offset) for found in turn) <= rows_max
        assert len({found.partition for found in turn}) == len(turn)
        before = [found.offset for found in turn]
        located = data.draw(st.integers(1, len(turn)), label="located")
        moved: set[Partition] = set()
        for found in turn[:located]:
            rows = data.draw(st.integers(0, min(each, found.stop - found.offset)), label="read")
            found.offset += rows
            self.offsets[found.partition] += rows
            if rows:
                moved.add(found.partition)
        self.rotation.rotate(located, before)
        for partition, offset in self.offsets.items():
            behind = offset < self.stops[partition]
            waits = behind and partition not in moved
            self.waited[partition] = self.waited.get(partition, 0) + len(moved) if waits else 0
            # No other has two turns meanwhile, but those that did not use theirs.
            assert self.waited[partition] <= 2 * len(PARTITIONS)

    @precondition(lambda self: self.rotation.ready > 0)
    @rule(cursors=st.integers(0, 7))
    def begin_with_another(self, cursors: int) -> None:
        self.rotation.skip(cursors)
        self.waited.clear()

    @invariant()
    def those_with_rows_are_ready(self) -> None:
        behind = {part for part, offset in self.offsets.items() if offset < self.stops[part]}
        ready = self.rotation.turn(1, 1 << 62, 1_000)
        assert {found.partition for found in ready} == behind
        assert self.rotation.ready == len(ready) == len(behind)
        assert {
            found.partition: found.offset for found in self.rotation.cursors.values()
        } == self.offsets


TestRotation: Any = RotationMachine.TestCase


def test_a_partition_that_is_born_is_read_from_its_first_message() -> None:
    unborn = PartitionCursor(PARTITIONS[0], 7, stop=0, log_end=0, clamps=False, is_born=False)
    rotation = Rotation([unborn])
    rotation.extend(unborn, 0)
    assert (rotation.ready, unborn.offset) == (0, 7)
    rotation.extend(unborn, 3)
    assert (rotation.ready, unborn.offset, unborn.stop) == (1, 0, 3)
    rotation.extend(unborn, 2)  # Told late.
    assert (unborn.offset, unborn.stop, unborn.log_end) == (0, 3, 3)


def test_a_partition_that_is_over_is_read_no_more_and_the_others_are_looked_at_again() -> None:
    cursors = [cursor(partition, 2, 5) for partition in PARTITIONS[:3]]
    rotation = Rotation(cursors)
    cursors[1].end()
    rotation.rotate(3, [2, 2, 2])
    assert rotation.turn(1, 9, 9) == [cursors[0], cursors[2]]
    cursors[0].offset = 5
    rotation.rotate(1, [2])
    rotation.extend(cursors[1], 9)
    rotation.look_again()
    assert {found.partition for found in rotation.turn(1, 9, 9)} == {PARTITIONS[0], PARTITIONS[2]}
    assert [each.stop == UNKNOWN for each in cursors] == [True, False, True]
