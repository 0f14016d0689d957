"""Bugs to plant into the product: the worlds are tried, each must be found, and soon.

A bug is a method or function whose source says something else in one place.
"""

import inspect
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

from wings_core.consumer_groups.coordinator import GroupCoordinator
from wings_core.consumer_groups.group import ConsumerGroup
from wings_core.fetch.fetcher import Fetcher
from wings_core.maintain import drain
from wings_core.metadata import judge
from wings_core.metadata.judge import Judge
from wings_core.metadata.sqlite import commit, database, writer
from wings_core.metadata.store import consumers, stages, transactions
from wings_core.metadata.store import maintenance as store_maintenance
from wings_core.metadata.store.database import FairPool
from wings_core.metadata.store.transactions import DatabaseTransactions
from wings_core.metadata.waiting import Waiters, Wake
from wings_core.share.coordinator.finalize import Finalizer
from wings_core.share.coordinator.settle import Settling
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.storage import files, segments
from wings_core.times import Deadline
from wings_server.flight import do_get


@dataclass(frozen=True)
class Bug:
    """One place of the product's source, and what it says instead."""

    owner: Any
    """Class or module."""
    name: str
    right: str
    wrong: str

    def plant(self) -> None:
        """Plant it into this process."""
        setattr(self.owner, self.name, self.made())

    def made(self) -> object:
        """Return the function that has the bug.

        Raises:
            AssertionError: The source does not have that place, once.
            AttributeError: There is no such function.
        """
        function = inspect.getattr_static(self.owner, self.name)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.right) == 1, f"{self.name} says {self.right!r} not once"
        module = sys.modules[function.__module__]
        made: dict[str, Any] = {}
        exec(source.replace(self.right, self.wrong), module.__dict__, made)
        return made[self.name]


BUGS: dict[str, Bug] = {
    "metadata is not synced": Bug(
        writer.SqliteWriter, "_open", "synchronous=FULL", "synchronous=OFF"
    ),
    "segments are not synced": Bug(
        segments._Segment,  # pyright: ignore[reportPrivateUsage]
        "append",
        "self._files.sync(self.descriptor)",
        "pass",
    ),
    "a push that is repeated is committed again": Bug(
        Judge,
        "_accept",
        "if first is not None:\n            return",
        "if False:\n            return",
    ),
    "a flush whose answer was lost is committed again": Bug(
        commit, "_commit_once", "if row is not None and is_repeat(flush_id, row[0]):", "if False:"
    ),
    "a reader looks before it listens": Bug(
        Fetcher,
        "read",
        "with self.waits.one():",
        "cancel.wake.clear()\n            with self.waits.one():",
    ),
    "waiters are not told of commits": Bug(
        Waiters, "notify", "if offset < next_offset:", "if offset < next_offset - 1:"
    ),
    "a reader that is woken wakes no other": Bug(
        Wake, "wait", "for queue in behind:", "for queue in []:"
    ),
    "deadlines are later than said": Bug(
        Deadline, "remaining", "self.at - time.monotonic()", "self.at + 2 - time.monotonic()"
    ),
    "retention takes the page that has the offset": Bug(
        store_maintenance,
        "expired_pages",
        "end_offset < finished_before",
        "end_offset <= finished_before",
    ),
    "a drain joins rows in another order": Bug(
        drain.Drain,
        "_read",
        "found[index].timestamps) for index in sorted(found)",
        "found[index].timestamps) for index in sorted(found, reverse=True)",
    ),
    "what a transaction changed stays in the cache": Bug(
        database.SqliteDatabase, "write", "if not keeps_cache:", "if False:"
    ),
    "a publish is not remembered": Bug(stages, "_find_result", "if row is None:", "if True:"),
    "a turn at a connection is lost": Bug(FairPool, "release", "waiter.served.release()", "pass"),
    "a row less is enough": Bug(
        Fetcher, "read", "state.enough", "state.delivered >= max(1, state.min_messages - 1)"
    ),
    "a follower hears nothing": Bug(
        Fetcher,
        "read",
        "cancel.wake.wait(state.deadline.remaining())",
        "(Wake() if follows else cancel.wake).wait(state.deadline.remaining())",
    ),
    "a consumer's second commit is not stored": Bug(
        consumers, "commit_offsets", 'SET "offset" = excluded.', 'SET "offset" = consumer_offsets.'
    ),
    "a sync of a segment that failed is taken for done": Bug(
        files.SystemFiles,
        "sync",
        "sync_data(descriptor)",
        "with suppress(OSError): sync_data(descriptor)",
    ),
    "timestamps go back with the clock": Bug(
        judge.PartitionDraft, "append", "timestamp = last", "pass"
    ),
    "a publish of an earlier epoch is let through": Bug(
        stages, "check_epoch", "if epoch == begun:", "if True:"
    ),
    "a producer of an earlier epoch is let through": Bug(
        transactions, "check_producer", "if found.epoch != producer.epoch:", "if False:"
    ),
    "a publish leaves the offsets out": Bug(
        stages, "publish", "commit_offsets(connection, offsets, now)", "pass"
    ),
    "an aborted transaction commits its offsets": Bug(
        DatabaseTransactions,
        "end",
        "_delete(connection, found)",
        "[commit_offsets(connection, each, 0) for each in _commits(connection, name)]\n"
        "        _delete(connection, found)",
    ),
    "an aborted transaction shows its rows": Bug(
        DatabaseTransactions, "end", "if commit:", "if True:"
    ),
    "a transaction shows its rows as they come": Bug(
        Judge, "_accept", "if batch.stage is not None:", "if False:"
    ),
    "a late transaction is committed": Bug(
        DatabaseTransactions, "expire", "self._expire(name)", "pass"
    ),
    "a member gets what another one still reads": Bug(
        ConsumerGroup, "_reconcile", "wanted &= ~other.held.get(topic, 0)", "pass"
    ),
    "sessions never end": Bug(ConsumerGroup, "expire", "if end <= now]", "if end <= now - 1_000]"),
    "a group that is taken over begins at the start": Bug(
        do_get, "_open", "dict(committed(log.registry, topic, ticket))", "{}"
    ),
    "a lease lasts as long as the clock is set back": Bug(
        store_maintenance, "_acquire_lease", "AND expires_at > %(end)s::bigint", "AND FALSE"
    ),
    "a group is taken over without its members": Bug(
        GroupCoordinator, "_load", "stored.members", "[]"
    ),
    "what was leased before a crash is leased again at once": Bug(
        Replica, "_refusals", "if seconds > 0:", "if False:"
    ),
    "what a share group has finished is not stored": Bug(
        SqliteHoldStore,
        "_write",
        "if write.finished_removed or write.finished_added:",
        "if write.finished_removed:",
    ),
    "a dead letter is not waited for": Bug(
        Finalizer, "write_dead_letters", "error = yield FinishDeadLetters(pending)", "error = None"
    ),
    "what comes after a finished message is taken for finished": Bug(
        Finalizer,
        "tombstone",
        "tracked.state.finish(each.first, each.last)",
        "tracked.state.finish(each.first, each.last + 1)",
    ),
    "what a worker asks to finish too late is finished, and it is refused": Bug(
        Settling,
        "_settle",
        "# Retention may have made some.",
        "; yield from self._finalizer.retire(tracked, [(each.first, each.last) for each in live])",
    ),
}

FOUND_BY: dict[str, int] = {
    "segments are not synced": 9,
    "a push that is repeated is committed again": 26,
    "a flush whose answer was lost is committed again": 59,
    "a reader looks before it listens": 12,
    "waiters are not told of commits": 42,
    "a reader that is woken wakes no other": 7,
    "deadlines are later than said": 1,
    "retention takes the page that has the offset": 12,
    "a drain joins rows in another order": 7,
    "what a transaction changed stays in the cache": 4,
    "a publish is not remembered": 169,
    "a turn at a connection is lost": 7,
    "a row less is enough": 84,
    "a follower hears nothing": 7,
    "a consumer's second commit is not stored": 2,
    "a sync of a segment that failed is taken for done": 166,
    "timestamps go back with the clock": 18,
    "a publish of an earlier epoch is let through": 67,
    "a producer of an earlier epoch is let through": 46,
    "a publish leaves the offsets out": 4,
    "an aborted transaction commits its offsets": 46,
    "an aborted transaction shows its rows": 46,
    "a transaction shows its rows as they come": 4,
    "a late transaction is committed": 172,
    "a member gets what another one still reads": 11,
    "sessions never end": 11,
    "a group that is taken over begins at the start": 4,
    "a lease lasts as long as the clock is set back": 452,
    "a group is taken over without its members": 18,
    "what was leased before a crash is leased again at once": 69,
    "what a share group has finished is not stored": 111,
    "a dead letter is not waited for": 76,
    "what comes after a finished message is taken for finished": 13,
    "what a worker asks to finish too late is finished, and it is refused": 13,
}
"""Worlds that show those that the first does not, as the code is now; they are tried first."""
