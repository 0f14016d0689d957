"""The log of a server with its satellites: SQL, tables and backups; and calls on it.

An action is a body model and a function from the log and a body to JSON, in a table by name.

A node caches topics for a moment. A request that does not fit the cached schema may fit one that
another node has created since, so the topic is read afresh before a rejection.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from wings_core.backup.backups import Backups
from wings_core.contracts.actions import ActionBody
from wings_core.deployments import Parts
from wings_core.errors import InvalidFilter, InvalidTicket, SchemaMismatch, WingsError
from wings_core.ingest.group_commit import FlushReport
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.model import PublishResult, Topic
from wings_core.names import TopicName
from wings_core.share.open import all_groups
from wings_core.share.replica.copies import HoldsCopies, ReplicaCopies
from wings_core.tables import Catalog, Tables
from wings_server.log_standing import History, Standings
from wings_server.nodes import GroupNode, Membership
from wings_server.tls import Tls

if TYPE_CHECKING:
    from wings_core.sql import Sql

Body = TypeVar("Body", bound=ActionBody)

Json = dict[str, Any] | list[dict[str, Any]]

Answer = Json | bytes
"""Result of an action; bytes are JSON already."""

T = TypeVar("T")

_MAY_BE_NEWER: tuple[type[WingsError], ...] = (InvalidTicket, InvalidFilter, SchemaMismatch)
"""Errors of a request that may be for a later version."""


class ServedLog(Log):
    """A log with its satellites, closed together.

    Args:
        parts: See `Log`.
        limits: See `Log`.
        on_flush: See `Log`.
        catalog: The catalog of tables, closed with the log; None without tables.
        holds: Copies the state of share groups for backups; None to read it from the coordinator's
            replicas.
        scratch: Directory for copies of databases; None for the system's temporary directory.

    Attributes:
        tables: Commits segments to the tables of topics, or None.
        backups: Backups in progress at this process.
        consumer_groups: Runs consumer groups, once this process is served; None before.
        membership: The lease of this node, once served; None of a server without other nodes.
        on_publish: Called with the result of each `stage-publish`; counts it once served.
        tls: The certificate of the listeners that serve it; None without TLS.
        standings: Reads the state of topics, consumers and groups for overviews.
        history: Samples of the last hour, once started.
    """

    def __init__(
        self,
        parts: Parts,
        limits: Limits,
        on_flush: Callable[[FlushReport], None],
        catalog: Catalog | None,
        holds: HoldsCopies | None,
        scratch: Path | None,
    ) -> None:
        metadata = parts.metadata
        self.consumer_groups: GroupNode | None = None
        self.on_publish: Callable[[PublishResult], None] = lambda published: None
        self.membership: Membership | None = None
        self.tls: Tls | None = None
        self.tables: Tables | None = None
        if catalog is not None:
            self.tables = Tables(metadata, catalog, parts.storage.remote.objects)
        super().__init__(parts, limits, on_flush, self.tables)
        groups = partial(all_groups, metadata.admin, metadata.groups)
        holds = holds or ReplicaCopies(groups, self.shares.coordinator.positions.stored)
        self.backups = Backups(metadata, holds, parts.storage.places, self.reclaimer.wake, scratch)
        self.standings = Standings(self)
        self.history = History(self, self.standings)
        self._is_closed = False

    @property
    def sql_running(self) -> int:
        """Number of running SQL queries; loads no SQL."""
        return self.sql.running if "sql" in vars(self) else 0

    @cached_property
    def sql(self) -> "Sql":
        """Runs SQL over the topics; loaded by the first use."""
        from wings_core.sql import Sql

        # One, though several threads may come first.
        made: Sql = vars(self).setdefault("sql", Sql(self))
        if self._is_closed:
            made.close()
        return made

    def close(self) -> None:
        """End backups and SQL, then close the log; readers must have ended."""
        self.backups.close()
        self._is_closed = True
        if "sql" in vars(self):
            self.sql.close()
        super().close()


def encoded(answer: Answer) -> bytes:
    """Encode the result of an action as JSON in UTF-8."""
    if isinstance(answer, bytes):
        return answer
    return json.dumps(answer, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class Action(Generic[Body]):
    """An action: the model of its body, its function, and its sentence in `list_actions`."""

    body: type[Body]
    run: Callable[[ServedLog, Body], Answer]
    description: str


class Actions(dict[str, Action[Any]]):
    """Actions by name, in the order in which they were added."""

    def add(
        self, name: str, body: type[Body]
    ) -> Callable[[Callable[[ServedLog, Body], Answer]], Callable[[ServedLog, Body], Answer]]:
        """Return a decorator that adds a function; its docstring is the action's description."""

        def added(run: Callable[[ServedLog, Body], Answer]) -> Callable[[ServedLog, Body], Answer]:
            assert name not in self
            assert run.__doc__ is not None
            self[name] = Action(body, run, run.__doc__)
            return run

        return added


def with_topic(
    log: Log, name: TopicName, use: Callable[[Topic], T], version: int | None = None
) -> T:
    """Return `use(topic)`; on a schema error, tries again with the topic read afresh.

    Args:
        log: The log.
        name: Name of the topic.
        use: Called with the topic at the schema version; must have no effect if it raises.
        version: Schema version; None for the latest.

    Raises:
        TopicNotFound: No such topic.
        InvalidTicket: The schema has no such version.

    The errors of `use` are raised, too.
    """
    topic = log.admin.get_topic(name)
    if version is not None and version > topic.schema_version:
        topic = log.versions.look_again(topic)
    if version is not None:
        return use(_at(topic, version))
    try:
        return use(topic)
    except _MAY_BE_NEWER:
        newest = log.versions.look_again(topic)
        if newest.schema_version == topic.schema_version:
            raise
    return use(newest)


def _at(topic: Topic, version: int) -> Topic:
    if not 1 <= version <= topic.schema_version:
        raise InvalidTicket(
            f"key 'schema_version': the schema of {topic.name} has versions 1 to "
            f"{topic.schema_version}; got {version}"
        )
    return topic.at(version)
