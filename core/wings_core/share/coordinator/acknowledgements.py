"""Acknowledgements: what members of a group say of messages, within the bounds of the log."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from wings_core.errors import WingsError
from wings_core.model import ShareGroup
from wings_core.partitions import Partition
from wings_core.share.coordinator.core import CoordinatorCore
from wings_core.share.coordinator.entries import not_held
from wings_core.share.coordinator.group_table import GroupTable
from wings_core.share.coordinator.partition_table import Bounds
from wings_core.share.counts import ShareCounts
from wings_core.share.model import Acknowledgement, AcknowledgementResult
from wings_core.share.quorum.run import Procedure, Runner, T


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
        beside: Sequence[Procedure[Any]],
    ) -> tuple[list[list[AcknowledgementResult]], Sequence[Any]]:
        """Acknowledge messages of a group while acquires are carried out.

        Args:
            group: As it is now.
            requests: A member each, and what it says of messages.
            beside: The acquires.

        Returns:
            The results by request, in the order of its entries, and the outcomes of the acquires.
        """
        asked: dict[tuple[int, Partition], list[Acknowledgement]] = {}
        for number, (_, entries) in enumerate(requests):
            for entry in entries:
                asked.setdefault((number, entry.partition), []).append(entry)
        bounds = self._bounds(group, requests)
        errors, outcomes = self._acknowledge(group, requests, asked, bounds, beside)
        # Where retention has passed messages just now, they are acknowledged all the same.
        again: dict[tuple[int, Partition], list[Acknowledgement]] = {}
        for key, of_key in errors.items():
            if any(of_key) and self._groups.bounds(group, key[1]) != bounds[key[1]]:
                again[key] = asked[key]
        if again:
            fresh = {key[1]: self._groups.bounds(group, key[1]) for key in again}
            errors |= self._acknowledge(group, requests, again, fresh)[0]
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

    def _bounds(
        self, group: ShareGroup, requests: Sequence[tuple[str, Sequence[Acknowledgement]]]
    ) -> dict[Partition, Bounds | WingsError]:
        """Return the bounds of the partitions that are named: as of now, but of acceptances."""
        bounds: dict[Partition, Bounds | WingsError] = {}
        exact: set[Partition] = set()
        for _, entries in requests:
            for entry in entries:
                partition = entry.partition
                if entry.type != "accept" and partition not in exact:
                    exact.add(partition)
                    bounds[partition] = self._groups.bounds(group, partition)
                elif partition not in bounds:
                    bounds[partition] = self._groups.known_bounds(group, partition)
        return bounds

    def _acknowledge(
        self,
        group: ShareGroup,
        requests: Sequence[tuple[str, Sequence[Acknowledgement]]],
        asked: Mapping[tuple[int, Partition], Sequence[Acknowledgement]],
        bounds: Mapping[Partition, Bounds | WingsError],
        beside: Sequence[Procedure[Any]] = (),
    ) -> tuple[
        dict[tuple[int, Partition], list[WingsError | None]],
        Sequence[Any],
    ]:
        """Acknowledge entries by request and partition, and carry out acquires meanwhile.

        Returns:
            The errors of the entries in the same order, and the outcomes of the acquires.
        """
        errors: dict[tuple[int, Partition], list[WingsError | None]] = {}
        begun: dict[Partition, list[int]] = {}
        table, are_loaded = self._core.table, True
        for (number, partition), entries in asked.items():
            of_log = bounds[partition]
            if isinstance(of_log, WingsError):
                errors[number, partition] = [of_log] * len(entries)
            elif of_log.end == 0:  # Never written to; nothing is kept of it.
                refusal = not_held(entries[0], requests[number][0])
                errors[number, partition] = [refusal] * len(entries)
            else:
                begun.setdefault(partition, []).append(number)
                are_loaded = are_loaded and table.is_loaded(group, partition)
        if not are_loaded:
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
                group, partition, cast("Bounds", bounds[partition]), numbers, requests, asked
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
        requests: Sequence[tuple[str, Sequence[Acknowledgement]]],
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
                alone = acknowledge.run(group, partition, bounds, requests[number][0], entries)
                found.append(([number], _in_list(alone)))
        if accepting:
            accepts = [(requests[number][0], asked[number, partition]) for number in accepting]
            found.append((accepting, acknowledge.accept(group, partition, bounds, accepts)))
        return found


def _in_list(procedure: Procedure[T]) -> Procedure[list[T]]:
    """Return a procedure that returns a list of one."""
    return [(yield from procedure)]
