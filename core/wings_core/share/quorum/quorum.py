"""HoldQuorum: holds, renewals, releases and tombstones on a majority of the replicas.

    procedures ─▶ Broadcast ─▶ Runner: those of one time together, a message to each replica
        ▲                        │
        └──────── votes ◀────────┘

What was held on a minority is released at once. A tombstone that was seen on a minority is brought
to a majority before anything else is done with what it stands on: its writer may have been
told that it is done. A procedure makes a bounded number of requests and then says what it knows.

Its methods are procedures (see `replica.requests`), which a `Runner` carries out.
"""

import random
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, cast

from wings_core.errors import Unavailable, WingsError
from wings_core.model import HeldRange, Lease
from wings_core.partitions import Partition
from wings_core.share.model import Clock, OffsetRange, ShareKey
from wings_core.share.quorum.votes import (
    HoldResult,
    KnownPartition,
    Refused,
    Renewed,
    Verdict,
    Vote,
    count_votes,
    delayed_by,
    divide,
    held_by,
    known_of,
    short_of,
    unavailable,
    verdict_of,
)
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import (
    Answer,
    Answers,
    Broadcast,
    CountedRange,
    DelayedRange,
    FinishDeadLetters,
    ForgetRequest,
    HoldRequest,
    LeaseEntry,
    PartOutcome,
    Pause,
    Procedure,
    RangeAnswer,
    ReadRequest,
    ReleaseEntry,
    ReleaseRequest,
    RenewRequest,
    ReplicaLink,
    ReplicaState,
    Request,
    T,
    TombstoneRequest,
)
from wings_core.share.state.ranges import Range, merged

ANSWERS_SECONDS_MAX = 2.0
"""Longest wait for the answers of replicas."""

GRACE_SECONDS = 0.2
"""Longest wait for the other replicas once a majority has answered."""

TRIES_MAX = 3
"""How often a tombstone is tried on replicas that do not answer."""

RETRY_SECONDS = (0.02, 0.2)
"""The pause before another try lies between these."""

MARGIN_SHARE = 0.01
MARGIN_SECONDS = 0.005
"""A lease is over here earlier than on any replica, for clocks do not run alike."""


class HoldQuorum:
    """Asks the replicas of one cluster.

    Args:
        replicas: How many there are.
        clock: The coordinator's.
        rng: For pauses.
        local: Whether the only replica runs on the coordinator's own clock.

    Attributes:
        is_local: Whether the only replica is in this process.
        majority: How many replicas are one.
    """

    def __init__(
        self, replicas: int, clock: Clock, rng: random.Random, *, local: bool = False
    ) -> None:
        assert replicas >= 1
        self._replicas = range(replicas)
        self.majority = replicas // 2 + 1
        self._clock = clock
        self._rng = rng
        self.is_local = local

    def expiry(self, asked_at: float, ttl_ms: int) -> float:
        """Return until when a lease that was asked for at a time may be relied on."""
        seconds = ttl_ms / 1_000
        margin = 0.0 if self.is_local else seconds * MARGIN_SHARE + MARGIN_SECONDS
        return asked_at + seconds - margin

    def hold(self, requests: Sequence[HoldRequest]) -> Procedure[list[HoldResult | WingsError]]:
        """Hold what a majority grants, of each of several requests of a partition.

        Returns:
            The outcome of each, in order: `Unavailable` where no majority answered it; then its
            grants of a minority are released.
        """

        def enough(answers: Mapping[int, Sequence[Answer]]) -> bool:
            return sum(all(map(_is_done, each)) for each in answers.values()) >= self.majority

        found: Mapping[int, Sequence[Answer]] = yield Broadcast(
            dict.fromkeys(self._replicas, tuple(requests)), enough, self.majority
        )
        outcomes: list[HoldResult | WingsError] = []
        for number, request in enumerate(requests):
            of_request = {replica: each[number] for replica, each in found.items()}
            try:
                outcomes.append((yield from self._held(request, of_request)))
            except WingsError as error:
                # An error of its own, as it may be raised.
                outcomes.append(type(error)(error.message, **error.facts))
        return outcomes

    def _held(self, request: HoldRequest, answers: Answers) -> Procedure[HoldResult]:
        """Return what a majority has granted of a request; see `hold`."""
        key, ranges, lease, ttl_ms = request.key, request.ranges, request.lease, request.ttl_ms
        parts = _parts_of(answers)
        if len(parts) < self.majority:
            yield from self._release_unused(key, ranges, lease)
            raise unavailable(answers)
        one, *others = parts.values()
        if len(self._replicas) == 1 or (_is_done(one) and all(each == one for each in others)):
            return _held_of(one)  # All agree, and there is nothing to repair.
        entombed, won, lost = divide(count_votes(parts), self.majority)
        if short := short_of(entombed, self.majority):
            try:
                yield from self.repair(key, short)
            except Unavailable:
                yield from self._release_unused(key, ranges, lease)
                raise
        finished = [OffsetRange(vote.first, vote.last) for vote in entombed]
        granted, uncounted = yield from self._agree_on_counts(key, won, lease, ttl_ms)
        failed = [(vote.first, vote.last) for vote in lost] + uncounted
        if failed:
            yield from self._release_unused(key, [OffsetRange(*each) for each in failed], lease)
        refused = [
            Refused(vote.first, vote.last, vote.retry_seconds(self.majority)) for vote in lost
        ] + [Refused(first, last, 0.0) for first, last in uncounted]
        return HoldResult(granted, finished, refused)

    def renew(
        self, key: ShareKey, entries: Sequence[LeaseEntry], ttl_ms: int
    ) -> Procedure[Renewed]:
        """Renew leases, which proves that a majority still honours them."""
        answers = yield from self._ask_all(
            RenewRequest(key, tuple(entries), ttl_ms), {PartOutcome.OK}
        )
        votes = count_votes(_parts_of(answers))
        verdict = verdict_of(votes, self.majority)
        counts = [
            CountedRange(
                vote.first,
                vote.last,
                1 + max(vote.parts[number].count for number in vote.replicas(PartOutcome.OK)),
            )
            for vote in votes
            if verdict is Verdict.DONE
        ]
        return Renewed(verdict, counts)

    def release(self, key: ShareKey, entries: Sequence[ReleaseEntry]) -> Procedure[list[Verdict]]:
        """Release what leases hold; returns the outcome of each entry, in their order.

        Args:
            key: The partition of a group.
            entries: In any order; no two have a message in common.
        """
        # Replicas take them in order, and votes are counted so.
        ordered = sorted(entries, key=lambda entry: entry.first)
        answers = yield from self._ask_all(ReleaseRequest(key, tuple(ordered)), {PartOutcome.OK})
        votes = count_votes(_parts_of(answers))
        if short := short_of(votes, self.majority):
            with suppress(Unavailable):  # It is left to the next request.
                yield from self.repair(key, short)
        verdicts: dict[int, Verdict] = {}
        at = 0
        for entry in ordered:
            begun = at
            while at < len(votes) and votes[at].last <= entry.last:
                at += 1
            verdicts[entry.first] = verdict_of(votes[begun:at], self.majority)
        return [verdicts[entry.first] for entry in entries]

    def tombstone(
        self,
        key: ShareKey,
        entries: Sequence[LeaseEntry],
        until: float,
        finished_before: int = 0,
        *,
        tries: int = TRIES_MAX,
    ) -> Procedure[Verdict]:
        """Finish what leases hold.

        Args:
            key: The partition of a group.
            entries: The finished ranges, with their leases.
            until: When the first of the leases is over. What was finished of it before was
                finished in its name.
            finished_before: All messages before this one are finished at a majority; replicas
                that have missed it hear of it.
            tries: How often replicas are asked that do not answer.
        """
        repair = [OffsetRange(0, finished_before - 1)] if finished_before else []
        request = TombstoneRequest(
            key, tuple(entries), tuple(repair) if len(self._replicas) > 1 else ()
        )
        done = {PartOutcome.OK, PartOutcome.TOMB}
        heard: dict[int, Sequence[RangeAnswer]] = {}
        verdict = Verdict.UNKNOWN
        for number in range(tries):
            if number:
                yield Pause(self._rng.uniform(*RETRY_SECONDS))
            missing = [replica for replica in self._replicas if replica not in heard]
            answers = yield from self._ask(dict.fromkeys(missing, request), done, heard)
            heard |= _parts_of(answers)
            if sum(map(_is_done, heard.values())) >= self.majority:
                return Verdict.DONE  # Each of them has done all of it.
            silent = len(self._replicas) - len(heard)
            verdict = self._final_verdict(count_votes(heard), until, silent)
            if verdict is not Verdict.UNKNOWN or not silent or self._clock.now() >= until:
                break
        refused = any(part.outcome is PartOutcome.NOK for parts in heard.values() for part in parts)
        if verdict is Verdict.UNKNOWN and len(heard) >= self.majority and refused:
            return Verdict.DISPUTED
        return verdict

    def repair(self, key: ShareKey, ranges: Sequence[OffsetRange]) -> Procedure[None]:
        """Finish ranges on a majority, held or not.

        Raises:
            Unavailable: No majority answered.
        """
        answers = yield from self._ask_all(TombstoneRequest(key, (), tuple(ranges)))
        if len(_parts_of(answers)) < self.majority:
            raise unavailable(answers)

    def read(
        self, group_uuid: str, topic_uuid: str, partitions: Sequence[Partition]
    ) -> Procedure[dict[Partition, KnownPartition]]:
        """Return what a majority knows of partitions, with tombstones of a minority repaired.

        Args:
            group_uuid: The group.
            topic_uuid: Its topic.
            partitions: Which; none for all that are known.

        Raises:
            Unavailable: No majority answered.
        """
        states = yield from self._read(ReadRequest(group_uuid, tuple(partitions)))
        known = {partition: known_of(found, self.majority) for partition, found in states.items()}
        for partition, found in known.items():
            if found.to_repair:
                yield from self.repair(ShareKey(group_uuid, topic_uuid, partition), found.to_repair)
        return known

    def held(self, group_uuid: str) -> Procedure[dict[Partition, list[HeldRange]]]:
        """Return what a majority knows to be held of a group, in order of offset.

        Raises:
            Unavailable: No majority answered.
        """
        states = yield from self._read(ReadRequest(group_uuid, (), with_holds=True))
        return {each: held_by(found, self.majority) for each, found in states.items()}

    def taken(
        self, group_uuid: str, partition: Partition
    ) -> Procedure[tuple[list[HeldRange], list[DelayedRange]]]:
        """Return what a majority knows to be held of a partition, and to be delayed, in order.

        Raises:
            Unavailable: No majority answered.
        """
        states = yield from self._read(ReadRequest(group_uuid, (partition,), with_holds=True))
        found = states[partition]
        return held_by(found, self.majority), delayed_by(found, self.majority)

    def forget(self, group_uuid: str) -> Procedure[None]:
        """Let all replicas that can be reached forget a group."""
        request = ForgetRequest(group_uuid)
        yield Broadcast(dict.fromkeys(self._replicas, (request,)), lambda _: False, self.majority)

    # Inside.

    def _read(self, request: ReadRequest) -> Procedure[dict[Partition, list[ReplicaState]]]:
        """Return what each replica of a majority at least has of partitions."""
        answers = yield from self._ask_all(request)
        heard = [
            cast("Sequence[ReplicaState]", answer)
            for answer in answers.values()
            if not isinstance(answer, WingsError)
        ]
        if len(heard) < self.majority:
            raise unavailable(answers)
        states: dict[Partition, list[ReplicaState]] = {}
        for answer in heard:
            for state in answer:
                states.setdefault(state.partition, []).append(state)
        return states

    def _ask_all(
        self, request: Request, wanted: Collection[PartOutcome] = ()
    ) -> Procedure[Answers]:
        """Send a request to all replicas; see `_ask`."""
        return self._ask(dict.fromkeys(self._replicas, request), wanted, {})

    def _ask(
        self,
        requests: Mapping[int, Request],
        wanted: Collection[PartOutcome],
        before: Mapping[int, Sequence[RangeAnswer]],
    ) -> Procedure[Answers]:
        """Return the answers so far as soon as a majority agrees, `before` included.

        A replica agrees that answers without an error, and, where outcomes are wanted, with none
        but those.
        """

        def agrees(answer: Answer) -> bool:
            if isinstance(answer, WingsError):
                return False
            parts = cast("Sequence[RangeAnswer]", answer)
            return not wanted or all(part.outcome in wanted for part in parts)

        agreed_before = sum(map(agrees, before.values()))

        def enough(answers: Mapping[int, Sequence[Answer]]) -> bool:
            agreed = agreed_before + sum(agrees(answer) for (answer,) in answers.values())
            return agreed >= self.majority

        asked = {replica: (request,) for replica, request in requests.items()}
        answers = yield Broadcast(asked, enough, self.majority)
        return {replica: answer for replica, (answer,) in answers.items()}

    def _release_unused(
        self, key: ShareKey, ranges: Sequence[OffsetRange], lease: Lease
    ) -> Procedure[None]:
        """Release what a lease holds of ranges that were not delivered; no delivery is counted."""
        in_order = sorted(ranges, key=lambda each: each.first)
        entries = tuple(ReleaseEntry(each.first, each.last, lease, 0) for each in in_order)
        request = ReleaseRequest(key, entries)
        # No answer is waited for: what stays held by mistake expires.
        yield Broadcast(dict.fromkeys(self._replicas, (request,)), lambda _: True, self.majority)

    def _final_verdict(self, votes: Sequence[Vote], until: float, silent: int) -> Verdict:
        """Judge a tombstone, which some replicas may have while it is refused by others."""
        done = (PartOutcome.OK, PartOutcome.TOMB)
        if votes and all(len(vote.replicas(*done)) >= self.majority for vote in votes):
            # Once the lease is over, another lease may have held it, and finished it.
            own = all(len(vote.replicas(PartOutcome.OK)) >= self.majority for vote in votes)
            if own or self._clock.now() < until:
                return Verdict.DONE
        if silent or any(vote.replicas(*done) for vote in votes):
            return Verdict.UNKNOWN
        return Verdict.REFUSED

    def _agree_on_counts(
        self, key: ShareKey, won: Sequence[Vote], lease: Lease, ttl_ms: int
    ) -> Procedure[tuple[list[CountedRange], list[tuple[int, int]]]]:
        """See to it that a majority will count the delivery that is to be made.

        A replica that missed earlier ones would count too few when this one expires.
        """
        granted: list[Range[int]] = []
        uncounted: list[tuple[int, int]] = []
        behind: dict[int, list[LeaseEntry]] = {}
        unsure: list[tuple[Vote, int]] = []
        for vote in won:
            counts = {number: vote.parts[number].count for number in vote.replicas(PartOutcome.OK)}
            highest = max(counts.values())
            knowing = sum(count == highest for count in counts.values())
            if knowing >= self.majority:
                granted.append((vote.first, vote.last, highest))
                continue
            unsure.append((vote, highest))
            for number, count in counts.items():
                if count < highest:
                    entry = LeaseEntry(vote.first, vote.last, lease, highest + 1)
                    behind.setdefault(number, []).append(entry)
        if not unsure:
            return _counted(granted), uncounted
        answers = yield Broadcast(
            {
                number: (RenewRequest(key, tuple(entries), ttl_ms),)
                for number, entries in behind.items()
            },
            lambda _: False,
            self.majority,
        )
        caught_up = count_votes(_parts_of({replica: each for replica, (each,) in answers.items()}))
        for vote, highest in unsure:
            knowing = sum(
                part.outcome is PartOutcome.OK and part.count == highest
                for part in vote.parts.values()
            )
            for more in caught_up:
                if more.first <= vote.first and vote.last <= more.last:
                    knowing += len(more.replicas(PartOutcome.OK))
            if knowing >= self.majority:
                granted.append((vote.first, vote.last, highest))
            else:
                uncounted.append((vote.first, vote.last))
        return _counted(sorted(granted)), uncounted


def _is_done(answer: Answer) -> bool:
    """Tell whether a replica did all that it was asked for."""
    if isinstance(answer, WingsError):
        return False
    parts: Any = answer
    return all(part.outcome is PartOutcome.OK for part in parts)


def _held_of(parts: Sequence[RangeAnswer]) -> HoldResult:
    """Return the outcome of a request to hold ranges that the only replica has answered."""
    ok, tomb, nok = PartOutcome.OK, PartOutcome.TOMB, PartOutcome.NOK
    return HoldResult(
        _counted([(each.first, each.last, each.count) for each in parts if each.outcome is ok]),
        [OffsetRange(each.first, each.last) for each in parts if each.outcome is tomb],
        [
            Refused(each.first, each.last, each.retry_ms / 1_000)
            for each in parts
            if each.outcome is nok
        ],
    )


def _counted(ranges: Iterable[Range[int]]) -> list[CountedRange]:
    """Return ranges in order with their counts, neighbours of the same count as one."""
    return [CountedRange(*each) for each in merged(ranges)]


def _parts_of(answers: Answers) -> dict[int, Sequence[RangeAnswer]]:
    """Return the answers that are no errors."""
    found = cast("Mapping[int, Sequence[RangeAnswer] | WingsError]", answers)
    return {
        number: answer for number, answer in found.items() if not isinstance(answer, WingsError)
    }


class Runner:
    """Runs procedures on the caller's thread; all methods from any thread.

    Args:
        links: To the replicas, by their numbers.
        own: The only replica, where it is in this process: there are no links then.
    """

    def __init__(self, links: Sequence[ReplicaLink], own: Replica | None = None) -> None:
        self._links = links
        self._own = own

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end, and return or raise what it does; blocks for its effects."""
        (outcome,) = self.run_all([procedure])
        if isinstance(outcome, WingsError):
            raise outcome
        return outcome

    def run_all(self, procedures: Sequence[Procedure[T]]) -> list[T | WingsError]:
        """Run procedures side by side; their requests to a replica at one time go together.

        Blocks for their effects. None of them may depend on a change of another.

        Returns:
            The result of each, in order, or its error.
        """
        outcomes: dict[int, Any] = {}
        values = dict[int, object].fromkeys(range(len(procedures)))
        while values:
            broadcasts: dict[int, Broadcast] = {}
            for index, value in list(values.items()):
                try:
                    effect = procedures[index].send(value)
                except StopIteration as stop:
                    outcomes[index] = stop.value
                    del values[index]
                except WingsError as error:
                    outcomes[index] = error
                    del values[index]
                else:
                    if isinstance(effect, Broadcast):
                        broadcasts[index] = effect
                    else:
                        values[index] = _carry_out(effect)
            if broadcasts:
                values |= self._broadcast_all(broadcasts)
        return [outcomes[index] for index in range(len(procedures))]

    def close(self) -> None:
        """Close the links."""
        for link in self._links:
            link.close()

    def _broadcast_all(self, broadcasts: Mapping[int, Broadcast]) -> dict[int, Any]:
        """Make the requests of broadcasts, those to a replica together; returns their answers."""
        if self._own is not None:
            requests = [each for broadcast in broadcasts.values() for each in broadcast.requests[0]]
            answered = iter(self._own.perform(requests))
            return {
                index: {0: list(islice(answered, len(broadcast.requests[0])))}
                for index, broadcast in broadcasts.items()
            }
        begun = {index: _Answers(broadcast) for index, broadcast in broadcasts.items()}
        asked: dict[int, tuple[list[Request], list[tuple[_Answers, int]]]] = {}
        for index, broadcast in broadcasts.items():
            for number, requests in broadcast.requests.items():
                of_replica, places = asked.setdefault(number, ([], []))
                of_replica += requests
                places += [(begun[index], at) for at in range(len(requests))]
        for number, (requests, places) in asked.items():
            done = partial(_tell, number, places)
            self._links[number].begin_all(requests, ANSWERS_SECONDS_MAX, done)
        return {index: answers.wait() for index, answers in begun.items()}


class _Answers:
    """The answers to a broadcast that was begun."""

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast
        self._answers: dict[int, Sequence[Answer]] = {}
        self._parts: dict[int, dict[int, Answer]] = {number: {} for number in broadcast.requests}
        """The answers of each replica so far, by index of the request."""
        self._changed = threading.Condition()
        self._deadline = time.monotonic() + ANSWERS_SECONDS_MAX

    def add(self, number: int, at: int, answer: Answer) -> None:
        """Take the answer of a replica to one of its requests; from any thread."""
        with self._changed:
            parts, wanted = self._parts[number], len(self._broadcast.requests[number])
            parts[at] = answer
            if len(parts) == wanted:
                self._answers[number] = [parts[each] for each in range(wanted)]
                self._changed.notify()

    def wait(self) -> dict[int, Sequence[Answer]]:
        """Return the answers once there are enough, or the time is up; see `Broadcast`."""
        broadcast, answers, deadline = self._broadcast, self._answers, self._deadline
        with self._changed:
            hurried = False
            while len(answers) < len(broadcast.requests) and not broadcast.enough(answers):
                heard = sum(map(is_heard, answers.values()))
                if heard >= broadcast.majority and not hurried:
                    hurried = True
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            return dict(answers)


def is_heard(answers: Sequence[Answer]) -> bool:
    """Tell whether a replica answered one of its requests at least without an error."""
    return not all(isinstance(answer, WingsError) for answer in answers)


def _tell(number: int, places: Sequence[tuple[_Answers, int]], index: int, answer: Answer) -> None:
    """Tell a broadcast the answer of a replica to the request with an index."""
    answers, at = places[index]
    answers.add(number, at, answer)


def _carry_out(effect: Pause | FinishDeadLetters) -> object:
    if isinstance(effect, Pause):
        return time.sleep(effect.seconds)
    try:
        return effect.pending.finish()
    except WingsError as error:
        return error
