"""Acknowledgements: what members of a group say of messages, within the bounds of the log."""

from collections.abc import Mapping, Sequence
from typing import Any

from wings_core.errors import WingsError
from wings_core.partitions import Partition
from wings_core.share.coordinator.core import CoordinatorCore
from wings_core.share.coordinator.entries import not_held
from wings_core.share.coordinator.group_table import GroupTable
from wings_core.share.coordinator.partition_table import Bounds
from wings_core.share.counts import ShareCounts
from wings_core.share.model import Acknowledgement, AcknowledgementResult, LeasedRange, ShareGroup
from wings_core.share.quorum.effects import Procedure
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
        accepted = sum(
            entry.last - entry.first + 1
            for key, entries in asked.items()
            for entry, error in zip(entries, errors[key], strict=True)
            if error is None and entry.type == "accept"
        )
        if accepted:
            self._counts.add(group, accepted=accepted)
        found = {key: iter(of_key) for key, of_key in errors.items()}
        results = [
            [
                AcknowledgementResult(entry, next(found[number, entry.partition]))
                for entry in entries
            ]
            for number, (_, entries) in enumerate(requests)
        ]
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
        begun: dict[tuple[int, Partition], Procedure[list[WingsError | None]]] = {}
        for key, entries in asked.items():
            of_log, member = bounds[key[1]], members[key[0]]
            if isinstance(of_log, WingsError):
                errors[key] = [of_log] * len(entries)
            elif of_log.end == 0:  # Never written to; nothing is kept of it.
                errors[key] = [not_held(entries[0], member)] * len(entries)
            else:
                begun[key] = self._core.acknowledge.run(group, key[1], of_log, member, entries)
        outcomes: Sequence[Any]
        try:
            if begun:
                partitions = [partition for _, partition in begun]
                self._runner.run(self._core.table.load(group, partitions))
            procedures: list[Procedure[Any]] = [*begun.values(), *beside]
            outcomes = self._runner.run_all(procedures)
        except WingsError as error:
            outcomes = [error] * (len(begun) + len(beside))
        for key, outcome in zip(begun, outcomes, strict=False):
            failed = isinstance(outcome, WingsError)
            errors[key] = [outcome] * len(asked[key]) if failed else outcome
        return errors, outcomes[len(begun) :]
