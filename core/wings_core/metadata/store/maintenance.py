"""Maintenance in a database: each method is one transaction."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from wings_core.errors import WingsError
from wings_core.metadata.checks import check_text
from wings_core.metadata.maintenance import (
    KEEPS_FOLIOS,
    Finished,
    Maintenance,
    MaintenanceLease,
    PageCounts,
    check_replacements,
    expired_pages,
)
from wings_core.metadata.store.database import Connection, DatabasePart, Lock
from wings_core.metadata.store.groups import lock_groups
from wings_core.metadata.store.pages import (
    PageRow,
    add_pages,
    count_off,
    find_partitions,
    insert_pages,
    largest_topics,
    location_of,
    lock_partition,
    tier_states,
    topic_state,
)
from wings_core.metadata.store.topics import find_topic_ids
from wings_core.model import (
    Expired,
    InlineBacklog,
    InlinePage,
    LargestTopics,
    Location,
    PageFormat,
    Replacement,
    TierState,
    TopicState,
    page_format,
)
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition

_logger = logging.getLogger(__name__)


class DatabaseMaintenance(DatabasePart, Maintenance):
    """See `Maintenance`."""

    def acquire_lease(self, name: str, holder: str, seconds: float) -> int | None:
        """Acquire or renew a lease; see `Maintenance.acquire_lease`."""
        check_text("a lease", name)
        check_text("a lease", holder)
        length = round(seconds * 1_000_000)
        return self._database.write(
            lambda connection: _acquire_lease(
                connection, name, holder, length, partial(self._database.lease_now, connection)
            )
        )

    def drop_leases(self) -> None:
        """Drop the leases, and the nodes, of all processes before this one, which have ended.

        Where that fails, as on a full disk, they end by themselves.
        """
        try:
            self._database.write(
                lambda connection: _drop_leases(connection, self._database.lease_now(connection))
            )
        except WingsError as error:
            _logger.warning("could not drop the leases of processes that ended: %s", error)

    def lease_holder(self, name: str) -> str | None:
        """Return the holder of a lease; see `Maintenance.lease_holder`."""
        check_text("a lease", name)

        def work(connection: Connection) -> str | None:
            row = connection.execute(
                "SELECT holder FROM leases WHERE name = %s AND expires_at > %s::bigint",
                (name, self._database.lease_now(connection)),
            ).fetchone()
            return None if row is None else row[0]

        return self._database.read(work)

    def release_lease(self, name: str, holder: str) -> None:
        """Release a lease; see `Maintenance.release_lease`."""
        check_text("a lease", name)
        check_text("a lease", holder)
        self._database.write(
            lambda connection: _release_lease(
                connection, name, holder, self._database.lease_now(connection)
            )
        )

    def expire(
        self,
        topic_uuid: str,
        partition: Partition,
        *,
        age_us: int | None,
        bytes_kept: int | None,
        finished: Finished | None = None,
        outside_tables: bool = False,
        before_offset: int = 0,
        pages_max: int,
    ) -> Expired:
        """Drop the oldest pages of a partition; see `Maintenance.expire`."""
        before = None if age_us is None else self._database.now() - age_us

        def work(connection: Connection) -> Expired:
            expired = _expire(
                connection,
                topic_uuid,
                partition,
                before,
                bytes_kept,
                finished,
                before_offset,
                pages_max,
            )
            first = expired.log_start_offset - expired.rows
            if outside_tables and _has_segments(
                connection, topic_uuid, partition, first, expired.log_start_offset
            ):
                raise _InTableError(first)
            return expired

        try:
            return self._database.write(work)
        except _InTableError as error:
            return Expired(error.log_start_offset, 0, 0, 0)

    def replace_all(
        self, replacements: Sequence[Replacement], lease: MaintenanceLease
    ) -> list[bool]:
        """Put pages into the place of others; see `Maintenance.replace_all`."""
        check_replacements(replacements)

        def work(connection: Connection) -> list[bool]:
            replaced = _replace_all(connection, replacements)
            if any(replaced) and not is_held(
                connection, lease, self._database.lease_now(connection)
            ):
                raise _LeaseLostError
            return replaced

        try:
            return self._database.write(work)
        except _LeaseLostError:
            return [False] * len(replacements)

    def inline_backlog(self, pages_max: int) -> InlineBacklog:
        """Return what metadata keeps inline; see `Maintenance.inline_backlog`."""
        return self._database.read(lambda connection: _find_inline(connection, pages_max))

    def tier_states(
        self,
        topic_uuid: str,
        *,
        after: Partition | None = None,
        partitions_max: int | None = None,
    ) -> list[TierState]:
        """Return what the partitions have in each tier; see `Maintenance.tier_states`."""
        return self._database.read(
            lambda connection: tier_states(connection, topic_uuid, after, partitions_max)
        )

    def topic_state(self, topic_uuid: str) -> TopicState:
        """Return the sums over a topic's partitions; see `Maintenance.topic_state`."""
        return self._database.read(lambda connection: topic_state(connection, topic_uuid))

    def largest_topics(self, topics_max: int, grouped_max: int) -> LargestTopics:
        """Return the topics with most bytes; see `Maintenance.largest_topics`."""
        return self._database.read(
            lambda connection: largest_topics(connection, topics_max, grouped_max)
        )


class _LeaseLostError(Exception):
    """Undoes the transaction."""


class _InTableError(Exception):
    """Undoes the transaction."""

    def __init__(self, log_start_offset: int) -> None:
        super().__init__()
        self.log_start_offset = log_start_offset


LEASES_KEPT_US = 24 * 3600 * 1_000_000
"""A lease that ended is deleted after this, in microseconds."""

_AFTER_KEEPS_FOLIOS = KEEPS_FOLIOS[:-1] + chr(ord(KEEPS_FOLIOS[-1]) + 1)
"""Greater than every name that begins so, and than no other greater one."""


def _acquire_lease(
    connection: Connection, name: str, holder: str, length_us: int, clock: Callable[[], int]
) -> int | None:
    """Acquire or renew a lease; see `Maintenance.acquire_lease`."""
    row = connection.execute(
        "INSERT INTO leases (name, holder, token, expires_at) "
        "VALUES (%(name)s, %(holder)s, 1, %(now)s::bigint + %(length)s::bigint) "
        "ON CONFLICT (name) DO UPDATE SET token = leases.token + CASE WHEN "
        "leases.holder <> excluded.holder OR leases.expires_at <= %(now)s THEN 1 ELSE 0 END, "
        "holder = excluded.holder, expires_at = excluded.expires_at "
        "WHERE leases.holder = excluded.holder OR leases.expires_at <= %(now)s RETURNING token",
        {"name": name, "holder": holder, "length": length_us, "now": clock()},
    ).fetchone()
    if row is not None:
        return int(row[0])
    # The row is locked by now. Before, its holder may have renewed it after the time above.
    connection.execute(
        "UPDATE leases SET expires_at = %(end)s::bigint "
        "WHERE name = %(name)s AND expires_at > %(end)s::bigint",
        {"name": name, "end": clock() + length_us},
    )
    return None


def _release_lease(connection: Connection, name: str, holder: str, now: int) -> None:
    """Release a lease; see `Maintenance.release_lease`."""
    connection.execute(
        "UPDATE leases SET expires_at = %(now)s "
        "WHERE name = %(name)s AND holder = %(holder)s AND expires_at > %(now)s",
        {"name": name, "holder": holder, "now": now},
    )


def _drop_leases(connection: Connection, now: int) -> None:
    """End all leases, and those of nodes; see `DatabaseMaintenance.drop_leases`."""
    connection.execute(
        "UPDATE leases SET expires_at = %(now)s WHERE expires_at > %(now)s", {"now": now}
    )
    connection.execute("DELETE FROM nodes")


def keep_folios(connection: Connection, now: int) -> bool:
    """Tell whether folios are kept that nothing refers to, as some lease has not ended."""
    row = connection.execute(
        "SELECT 1 FROM leases WHERE name > %(first)s::text AND name < %(end)s::text "
        "AND expires_at > %(now)s::bigint LIMIT 1",
        {"first": KEEPS_FOLIOS, "end": _AFTER_KEEPS_FOLIOS, "now": now},
    ).fetchone()
    return row is not None


def is_held(connection: Connection, lease: MaintenanceLease, now: int) -> bool:
    """Tell whether a lease has not ended since it was taken; it cannot be taken from here on.

    Its row is locked last of all, so this is called at the end of a transaction.
    """
    row = connection.execute(
        "SELECT 1 FROM leases WHERE name = %s AND holder = %s AND token = %s "
        "AND expires_at > %s::bigint FOR SHARE",
        (lease.name, lease.holder, lease.token, now),
    ).fetchone()
    return row is not None


def _expire(
    connection: Connection,
    topic_uuid: str,
    partition: Partition,
    before: int | None,
    bytes_kept: int | None,
    finished: Finished | None,
    before_offset: int,
    pages_max: int,
) -> Expired:
    """Drop pages within the transaction of `connection`; see `Maintenance.expire`."""
    finished_before = 0
    if finished is not None and lock_groups(connection, topic_uuid) == finished.groups:
        finished_before = finished.before
    locked = lock_partition(connection, topic_uuid, partition)
    if locked is None:
        return Expired(0, 0, 0, 0)
    partition_id, log_start_offset, size = locked
    pages: list[PageRow] = connection.execute(
        "SELECT partition_id, end_offset, start_offset, timestamp, folio_id, position, length, "
        "first_timestamp, format, first_row, slice_bytes, schema_version FROM pages "
        "WHERE partition_id = %s ORDER BY end_offset LIMIT %s::bigint",
        (partition_id, pages_max + 1),
    ).fetchall()
    ages = ((page[3], page[1], _bytes_of(page)) for page in pages)
    count = expired_pages(ages, size, before, bytes_kept, max(before_offset, finished_before))
    while before_offset and 0 < count < len(pages) and _are_one_file(*pages[count - 1 : count + 1]):
        count -= 1
    count = min(count, pages_max)
    changed = pages[:count]
    folios = Counter(page[4] for page in changed)
    rest = _rest_of(pages[count], before_offset) if count < min(len(pages), pages_max) else None
    if rest is not None:
        changed.append(pages[count])
    if not changed:
        return Expired(log_start_offset, 0, 0, 0)
    connection.execute(
        "DELETE FROM pages WHERE partition_id = %s AND end_offset <= %s",
        (partition_id, changed[-1][1]),
    )
    kept = [] if rest is None else [rest]
    if rest is not None:
        insert_pages(connection, kept)
    start_offset = changed[-1][1] + 1 if rest is None else rest[2]
    connection.execute(
        "UPDATE partitions SET log_start_offset = %s WHERE id = %s", (start_offset, partition_id)
    )
    came, went = (
        PageCounts.of(
            (page[1] - page[2] + 1, _bytes_of(page), page_format(page[8])) for page in part
        )
        for part in (kept, changed)
    )
    _count(connection, {partition_id: came - went})
    count_off(connection, folios)
    return Expired(start_offset, count, start_offset - log_start_offset, went.bytes - came.bytes)


def _are_one_file(page: PageRow, following: PageRow) -> bool:
    """Return whether two pages go together: a table has a Parquet file as a whole, or will."""
    return page[4] == following[4] and page_format(page[8]) is PageFormat.PARQUET


def _bytes_of(page: PageRow) -> int:
    return page[6] if page[10] is None else page[10]


def _rest_of(page: PageRow, before_offset: int) -> PageRow | None:
    """Return a page without its rows before an offset; None where it stays as it is."""
    id_, end, start, timestamp, folio, position, length, first, format_, row, _, version = page
    if before_offset <= start or page_format(format_) is PageFormat.PARQUET:
        return None
    gone = before_offset - start
    size = max(1, _bytes_of(page) * (end + 1 - before_offset) // (end + 1 - start))
    at = (id_, end, before_offset, timestamp, folio, position, length)
    return (*at, first, format_, (row or 0) + gone, size, version)


def _replace_all(connection: Connection, replacements: Sequence[Replacement]) -> list[bool]:
    """Replace pages within the transaction of `connection`; see `Maintenance.replace_all`."""
    uuids = sorted({each.topic_uuid for each in replacements})
    connection.share_lock(Lock.TOPICS, uuids)
    topic_ids = find_topic_ids(connection, uuids)
    keys = {
        index: (topic_ids[each.topic_uuid], each.partition)
        for index, each in enumerate(replacements)
        if each.topic_uuid in topic_ids
    }
    # All partitions are locked before the first folio is, in the order of `Lock`.
    drafts = find_partitions(connection, list(keys.values()))
    ids = {
        index: id_
        for index, key in keys.items()
        if (id_ := drafts[key].partition_id) is not None  # It was written to.
    }
    folios: Counter[int] = Counter()
    found = _pages_of(connection, ids, replacements)
    for index in list(ids):
        rows = found.get(index, ())
        if [location for location, _ in rows] == list(replacements[index].old):
            folios.update(folio_id for _, folio_id in rows)
        else:
            del ids[index]
    if ids:
        _swap(connection, [(id_, replacements[index]) for index, id_ in ids.items()])
    count_off(connection, folios)
    return [index in ids for index in range(len(replacements))]


def _pages_of(
    connection: Connection, ids: Mapping[int, int], replacements: Sequence[Replacement]
) -> dict[int, list[tuple[Location, int]]]:
    """Return the pages in the ranges of replacements, each with the id of its folio.

    Args:
        connection: In whose transaction the partitions are locked.
        ids: Ids of their partitions, by the index of the replacement.
        replacements: The replacements.

    Returns:
        The pages by the index of the replacement, in order.
    """
    rows = connection.execute_rows(
        "SELECT given.number, pages.start_offset, pages.end_offset, pages.timestamp, "
        "folios.name, pages.position, pages.length, pages.first_timestamp, pages.format, "
        "pages.first_row, pages.slice_bytes, pages.schema_version, pages.folio_id FROM {given} "
        "JOIN pages ON pages.partition_id = given.id "
        "AND pages.end_offset BETWEEN given.first AND given.last "
        "JOIN folios ON folios.id = pages.folio_id ORDER BY given.place, pages.end_offset",
        {
            "number bigint": list(ids),
            "id bigint": list(ids.values()),
            "first bigint": [replacements[index].old[0].end_offset for index in ids],
            "last bigint": [replacements[index].old[-1].end_offset for index in ids],
        },
    ).fetchall()
    found: dict[int, list[tuple[Location, int]]] = {}
    for index, *page, folio_id in rows:
        found.setdefault(index, []).append((location_of(*page), folio_id))
    return found


def _swap(connection: Connection, replacements: Sequence[tuple[int, Replacement]]) -> None:
    """Delete the old pages of partitions, by id, index the new ones, and count both."""
    gone = [(id_, page.end_offset) for id_, each in replacements for page in each.old]
    connection.execute_rows(
        "DELETE FROM pages WHERE (partition_id, end_offset) IN "
        "(SELECT given.id, given.end_offset FROM {given})",
        {"id bigint": [id_ for id_, _ in gone], "end_offset bigint": [end for _, end in gone]},
    )
    changes: dict[int, PageCounts] = {}
    for id_, each in replacements:
        change = PageCounts.of_locations(each.new) - PageCounts.of_locations(each.old)
        changes[id_] = changes[id_] + change if id_ in changes else change
    _count(connection, changes)
    add_pages(connection, [(id_, page) for id_, each in replacements for page in each.new])


def _count(connection: Connection, changes: Mapping[int, PageCounts]) -> None:
    """Count pages to partitions, by id: those that came less those that went."""
    connection.execute_rows(
        "UPDATE partitions SET bytes = partitions.bytes + given.bytes, "
        "pages = partitions.pages + given.pages, "
        "merged_pages = partitions.merged_pages + given.merged_pages, "
        "merged_rows = partitions.merged_rows + given.merged_rows, "
        "merged_bytes = partitions.merged_bytes + given.merged_bytes "
        "FROM {given} WHERE partitions.id = given.id",
        {
            "id bigint": list(changes),
            **{
                f"{name} bigint": [getattr(each, name) for each in changes.values()]
                for name in ("pages", "bytes", "merged_pages", "merged_rows", "merged_bytes")
            },
        },
    )


def _find_inline(connection: Connection, pages_max: int) -> InlineBacklog:
    """Return what is inline; see `Maintenance.inline_backlog`."""
    # Deleted topics have no namespace, and so fall out of the join.
    rows = connection.execute(
        "SELECT namespaces.tenant, namespaces.name, topics.name, topics.uuid, partitions.value, "
        "pages.start_offset, pages.end_offset, pages.timestamp, folios.name, pages.position, "
        "pages.length, pages.first_timestamp, pages.format, pages.first_row, pages.slice_bytes, "
        "pages.schema_version "
        "FROM pages JOIN partitions ON partitions.id = pages.partition_id "
        "JOIN topics ON topics.id = partitions.topic_id "
        "JOIN namespaces ON namespaces.id = topics.namespace_id "
        "JOIN folios ON folios.id = pages.folio_id "
        "WHERE pages.format = 3 ORDER BY pages.partition_id, pages.end_offset LIMIT %s::bigint",
        (pages_max,),
    ).fetchall()
    ((size,),) = connection.execute(
        "SELECT coalesce(sum(length(data)), 0) FROM inline_folios"
    ).fetchall()
    names: dict[str, TopicName] = {}
    pages: list[InlinePage] = []
    for tenant, namespace, topic, uuid, partition, *page in rows:
        name = names.get(uuid)
        if name is None:
            name = names[uuid] = TopicName(NamespaceName(tenant, namespace), topic)
        pages.append(InlinePage(name, uuid, partition, location_of(*page)))
    return InlineBacklog(tuple(pages), int(size))


def _has_segments(
    connection: Connection, topic_uuid: str, partition: Partition, first: int, end: int
) -> bool:
    """Tell whether a table has rows of a range of offsets, or is about to.

    Asked once the folios of the range are locked: what another transaction planned is seen then.

    Args:
        connection: In whose transaction they are locked.
        topic_uuid: The topic.
        partition: Partition of the offsets.
        first: Inclusive.
        end: Exclusive.
    """
    row = connection.execute(
        "SELECT 1 FROM table_segments WHERE topic_uuid = %s AND partition = %s "
        "AND end_offset >= %s AND end_offset - rows + 1 < %s LIMIT 1",
        (topic_uuid, partition, first, end),
    ).fetchone()
    return row is not None
