"""Acquiring: what leases messages to several requests of a group at once, side by side.

What is new in the partitions is leased to all of them by one request to each replica; else each
request looks for itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wings_core.errors import WingsError
from wings_core.model import LeasedRange, PartitionState, ShareGroup
from wings_core.share.coordinator.acquirer import BatchEnd
from wings_core.share.coordinator.core import CoordinatorCore
from wings_core.share.model import AcquireRequest
from wings_core.share.quorum.run import Procedure

Leased = Sequence[LeasedRange] | WingsError
"""What a request got, or why it got nothing."""


class Acquiring:
    """The procedures that serve some requests; all of them are to be run.

    Args:
        core: Leases messages.
        group: Of all requests.
        requests: Which messages, for which members.
        found: Where the partitions stand that a request may be served from, for each of those that
            requests ask for; None: of any.
        batch_end: See `Acquirer.acquire`.

    Attributes:
        procedures: What to run.
    """

    def __init__(
        self,
        core: CoordinatorCore,
        group: ShareGroup,
        requests: Mapping[int, AcquireRequest],
        found: Sequence[PartitionState],
        batch_end: BatchEnd,
    ) -> None:
        self.procedures: list[Procedure[Any]] = []
        self._core = core
        self._group = group
        self._begun_at = core.now()
        self._numbers = list(requests)
        self._are_together = False
        table, acquirer = core.table, core.acquirer
        asked = list(requests.values())
        written = [state for state in found if state.next_offset]
        loaded = [state for state in written if table.is_loaded(group, state.partition)]
        if len(loaded) == len(written):
            planned = core.fresh.plan(group, asked, written)
            if planned is not None:
                self._are_together = True
                self.procedures += [
                    core.fresh.acquire(group, part, alone=len(planned) == 1) for part in planned
                ]
                return
        if len(asked) == 1 and len(written) > 1 and asked[0].messages_max > 1:
            self.procedures += acquirer.side_by_side(asked[0], loaded)
        if not self.procedures:
            self.procedures += [acquirer.acquire(each, found, batch_end) for each in asked]

    def outcomes(self, outcomes: Sequence[Any]) -> dict[int, Leased]:
        """Return what each request got, by its number, from what the procedures have returned."""
        got: dict[int, list[Leased]] = {number: [] for number in self._numbers}
        for at, outcome in enumerate(outcomes):
            if self._are_together and not isinstance(outcome, WingsError):
                for number, leased in outcome:
                    got[self._numbers[number]].append(leased)
            elif self._are_together:
                for each in got.values():
                    each.append(outcome)
            else:
                got[self._numbers[min(at, len(self._numbers) - 1)]].append(outcome)
        leased = {number: all_of(found) for number, found in got.items()}
        seconds = self._core.now() - self._begun_at
        if seconds * 2_000 < self._group.config.lock_duration_ms:
            return leased
        # Other procedures took long, which all waited for: what was leased may be over by now.
        return {
            number: found if isinstance(found, WingsError) else self._not_over(found)
            for number, found in leased.items()
        }

    def _not_over(self, ranges: Sequence[LeasedRange]) -> list[LeasedRange]:
        return [each for each in ranges if self._core.table.is_leased(self._group, each)]


def all_of(outcomes: Sequence[Leased]) -> Leased:
    """Return what was leased of several partitions, or why nothing was."""
    if len(outcomes) == 1:
        return outcomes[0]
    errors = [outcome for outcome in outcomes if isinstance(outcome, WingsError)]
    ranges = [
        leased for outcome in outcomes if not isinstance(outcome, WingsError) for leased in outcome
    ]
    return errors[0] if errors and not ranges else ranges
