"""Acknowledgements: what members of a group say of messages, within the bounds of the log."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from wings_core.errors import WingsError
from wings_core.partitions import Partition
from wings_core.share.coordinator.core import CoordinatorCore
from wings_core.share.coordinator.entries import not_held
from wings_core.share.coordinator.group_table import GroupTable
from wings_core.share.coordinator.partition_table import Bounds
from wings_core.share.counts import ShareCounts
from wings_core.share.model import Acknowledgement, AcknowledgementResult, LeasedRange, ShareGroup
from wings_core.share.quorum.effects import Procedure, T
from wings_core.share.quorum.links import Runner


class Acknowledgements:
    """Carries out acknowledgements, those of many members side by side.

    Args:
        groups: Those that are used on this node.
        core: Whose procedures are run.
        runner: Runs them.
        counts: Of what is accepted.
    """

    def __init__(
        self, groups: GroupTable, core: CoordinatorCore, runner: Runner, counts: ShareCounts
    ) -> None:
        self._groups = groups
        self._core = core
        self._runner = runner
        self._counts = counts

    def take(
        self,
        group: ShareGroup,
        requests: Sequence[tuple[str, Sequence[Acknowledgement]]],
        beside: Sequence[Procedure[list[LeasedRange]]],
    ) -> tuple[list[list[AcknowledgementResult]], Sequence[list[LeasedRange] | WingsError]]:
        """Acknowledge messages of a group while acquires are carried out.

        Args:
            group: As it is now.
            requests: A member each, and what it says of messages.
            beside: The acquires.

        Returns:
            The results by request, in the order of its entries, and the outcomes of the acquires.
        """
        members = [member for member, _ in requests]
        asked: dict[tuple[int, Partition], list[Acknowledgement]] = {}
        for number, (_, entries) in enumerate(requests):
            for entry in entries:
                asked.setdefault((number, entry.partition), []).append(entry)
        others = {
            entry.partition
            for _, entries in requests
            for entry in entries
            if entry.type != "accept"
        }
        bounds = {
            key[1]: self._groups.bounds(group, key[1])
            if key[1] in others
            else self._groups.known_bounds(group, key[1])
            for key in asked
        }
        errors, outcomes = self._acknowledge(group, members, asked, bounds, beside)
        # Where retention has passed messages just now, they are acknowledged all the same.
        again = {
            key: entries
            for key, entries in asked.items()
            if any(errors[key]) and self._groups.bounds(group, key[1]) != bounds[key[1]]
        }
        if again:
            fresh = {key[1]: self._groups.bounds(group, key[1]) for key in again}
            errors |= self._acknowledge(group, members, again, fresh)[0]
        left = {key: iter(of_key) for key, of_key in errors.items()}
        accepted = 0
        results: list[list[AcknowledgementResult]] = []
        for number, (_, entries) in enumerate(requests):
            of_request: list[AcknowledgementResult] = []
            for entry in entries:
                error = next(left[number, entry.partition])
                of_request.append(AcknowledgementResult(entry, error))
                if error is None and entry.type == "accept":
                    accepted += entry.last - entry.first + 1
            results.append(of_request)
        if accepted:
            self._counts.add(group, accepted=accepted)
        return results, outcomes

    def _acknowledge(
        self,
        group: ShareGroup,
        members: Sequence[str],
        asked: Mapping[tuple[int, Partition], Sequence[Acknowledgement]],
        bounds: Mapping[Partition, Bounds | WingsError],
        beside: Sequence[Procedure[list[LeasedRange]]] = (),
    ) -> tuple[
        dict[tuple[int, Partition], list[WingsError | None]],
        Sequence[list[LeasedRange] | WingsError],
    ]:
        """Acknowledge entries by request and partition, and carry out acquires meanwhile.

        Returns:
            The errors of the entries in the same order, and the outcomes of the acquires.
        """
        errors: dict[tuple[int, Partition], list[WingsError | None]] = {}
        begun: dict[Partition, list[int]] = {}
        for (number, partition), entries in asked.items():
            of_log = bounds[partition]
            if isinstance(of_log, WingsError):
                errors[number, partition] = [of_log] * len(entries)
            elif of_log.end == 0:  # Never written to; nothing is kept of it.
                errors[number, partition] = [not_held(entries[0], members[number])] * len(entries)
            else:
                begun.setdefault(partition, []).append(number)
        table = self._core.table
        if not all(table.is_loaded(group, partition) for partition in begun):
            try:
                self._runner.run(table.load(group, list(begun)))
            except WingsError as error:
                for partition, numbers in begun.items():
                    for number in numbers:
                        errors[number, partition] = [error] * len(asked[number, partition])
                begun = {}
        acknowledging = [
            (partition, *each)
            for partition, numbers in begun.items()
            for each in self._acknowledging(
                group, partition, cast("Bounds", bounds[partition]), numbers, members, asked
            )
        ]
        procedures: list[Procedure[Any]] = [each for _, _, each in acknowledging]
        outcomes: Sequence[Any] = self._runner.run_all([*procedures, *beside])
        for (partition, numbers, _), outcome in zip(acknowledging, outcomes, strict=False):
            for at, number in enumerate(numbers):
                key = (number, partition)
                failed = isinstance(outcome, WingsError)
                errors[key] = [outcome] * len(asked[key]) if failed else outcome[at]
        return errors, outcomes[len(procedures) :]

    def _acknowledging(
        self,
        group: ShareGroup,
        partition: Partition,
        bounds: Bounds,
        numbers: Sequence[int],
        members: Sequence[str],
        asked: Mapping[tuple[int, Partition], Sequence[Acknowledgement]],
    ) -> list[tuple[Sequence[int], Procedure[list[list[WingsError | None]]]]]:
        """Return what acknowledges the entries of a partition; those who only accept share one."""
        acknowledge = self._core.acknowledge
        accepting: list[int] = []
        found: list[tuple[Sequence[int], Procedure[list[list[WingsError | None]]]]] = []
        for number in numbers:
            entries = asked[number, partition]
            if all(entry.type == "accept" for entry in entries):
                accepting.append(number)
            else:
                alone = acknowledge.run(group, partition, bounds, members[number], entries)
                found.append(([number], _in_list(alone)))
        if accepting:
            requests = [(members[number], asked[number, partition]) for number in accepting]
            found.append((accepting, acknowledge.accept(group, partition, bounds, requests)))
        return found


def _in_list(procedure: Procedure[T]) -> Procedure[list[T]]:
    """Return a procedure that returns a list of one."""
    return [(yield from procedure)]
