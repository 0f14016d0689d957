"""Handlers of the RPCs on maintenance, tables, tokens and copies; see `handlers`."""

# ruff: noqa: D102 - what an RPC means is said in its `.proto` file.
import secrets
import tempfile
import threading
import time

# ruff: noqa: D102 - what an RPC means is said in its `.proto` file.
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from wings_core.errors import InvalidArgument, ResourceExhausted
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.maintenance import Finished, MaintenanceLease, TableSegment

# ruff: noqa: D102 - what an RPC means is said in its `.proto` file.
from wings_core.metadata.remote.paging import BY_PARTITION, BY_TEXT
from wings_core.partitions import canonical_partition
from wings_core.protocol import messages
from wings_core.protocol.v1 import copies_pb2 as copies_pb
from wings_core.protocol.v1 import maintenance_pb2 as maintenance_pb
from wings_core.protocol.v1 import tables_pb2 as tables_pb
from wings_core.protocol.v1 import tokens_pb2 as tokens_pb
from wings_server.metadata.requests import page, step

LEASE_SECONDS_MAX = 3_600.0
"""The longest lease: no other holder can take it before it ends."""


class MaintenanceHandlers:
    """The RPCs of `wings.v1.MaintenanceService`.

    Args:
        metadata: What is served.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._maintenance = metadata.maintenance

    def acquire_lease(
        self, request: maintenance_pb.AcquireLeaseRequest
    ) -> maintenance_pb.AcquireLeaseResponse:
        """Grant a lease that is free, or prolong the holder's own."""
        if not 0 < request.seconds <= LEASE_SECONDS_MAX:
            raise InvalidArgument(
                f"a lease of {request.seconds:g} s: expected more than 0 and at most "
                f"{LEASE_SECONDS_MAX:g}"
            )
        token = self._maintenance.acquire_lease(request.name, request.holder, request.seconds)
        return maintenance_pb.AcquireLeaseResponse(token=token)

    def release_lease(
        self, request: maintenance_pb.ReleaseLeaseRequest
    ) -> maintenance_pb.ReleaseLeaseResponse:
        """Release a lease."""
        self._maintenance.release_lease(request.name, request.holder)
        return maintenance_pb.ReleaseLeaseResponse()

    def expire_pages(
        self, request: maintenance_pb.ExpirePagesRequest
    ) -> maintenance_pb.ExpirePagesResponse:
        """Drop the oldest pages of a partition."""
        expired = self._maintenance.expire(
            request.topic_uuid,
            canonical_partition(request.partition),
            age_us=request.age_us if request.HasField("age_us") else None,
            bytes_kept=request.bytes_kept if request.HasField("bytes_kept") else None,
            finished=(
                Finished(request.finished_before, frozenset(request.group_uuids))
                if request.HasField("finished_before")
                else None
            ),
            outside_tables=request.outside_tables,
            pages_max=step("pages_max", request.pages_max),
        )
        return messages.EXPIRED.encode(expired)

    def replace_pages(
        self, request: maintenance_pb.ReplacePagesRequest
    ) -> maintenance_pb.ReplacePagesResponse:
        """Put merged pages into the place of others."""
        replaced = self._maintenance.replace(
            request.topic_uuid,
            canonical_partition(request.partition),
            [messages.LOCATION.decode(location) for location in request.old],
            [messages.LOCATION.decode(location) for location in request.new],
            MaintenanceLease(request.lease, request.holder, request.token),
        )
        return maintenance_pb.ReplacePagesResponse(replaced=replaced)

    def replace_all_pages(
        self, request: maintenance_pb.ReplaceAllPagesRequest
    ) -> maintenance_pb.ReplaceAllPagesResponse:
        """Put pages into the place of others, in many partitions."""
        replaced = self._maintenance.replace_all(
            [
                replace(
                    messages.REPLACEMENT.decode(each),
                    partition=canonical_partition(each.partition),
                )
                for each in request.replacements
            ],
            MaintenanceLease(request.lease, request.holder, request.token),
        )
        return maintenance_pb.ReplaceAllPagesResponse(replaced=replaced)

    def get_inline_backlog(
        self, request: maintenance_pb.GetInlineBacklogRequest
    ) -> maintenance_pb.InlineBacklog:
        """Answer what is inline."""
        pages_max = step("pages_max", request.pages_max)
        return messages.INLINE_BACKLOG.encode(self._maintenance.inline_backlog(pages_max))

    def list_tier_states(
        self, request: maintenance_pb.ListTierStatesRequest
    ) -> maintenance_pb.ListTierStatesResponse:
        """Answer a page of what a topic's partitions have in each tier."""
        found, token = page(
            request,
            BY_PARTITION,
            lambda after, most: self._maintenance.tier_states(
                request.topic_uuid, after=after, partitions_max=most
            ),
            lambda state: state.partition,
        )
        return maintenance_pb.ListTierStatesResponse(
            tier_states=map(messages.TIER_STATE.fields, found), next_page_token=token
        )

    def get_topic_state(
        self, request: maintenance_pb.GetTopicStateRequest
    ) -> maintenance_pb.TopicState:
        """Answer the sums over a topic's partitions."""
        return messages.TOPIC_STATE.encode(self._maintenance.topic_state(request.topic_uuid))

    def get_largest_topics(
        self, request: maintenance_pb.GetLargestTopicsRequest
    ) -> maintenance_pb.LargestTopics:
        """Answer the topics with most bytes."""
        topics_max = step("topics_max", request.topics_max)
        grouped_max = step("grouped_max", request.grouped_max)
        return messages.LARGEST_TOPICS.encode(
            self._maintenance.largest_topics(topics_max, grouped_max)
        )


class TableHandlers:
    """Handles the methods of `wings.v1.TableService`."""

    def __init__(self, metadata: Metadata) -> None:
        self._tables = metadata.tables

    def list_tables(self, _: tables_pb.ListTablesRequest) -> tables_pb.ListTablesResponse:
        return tables_pb.ListTablesResponse(identifiers=self._tables.tables())

    def begin_table(self, request: tables_pb.BeginTableRequest) -> tables_pb.BeginTableResponse:
        number = self._tables.begin(request.topic_uuid, request.identifier)
        return tables_pb.BeginTableResponse(number=number)

    def get_table_segments(
        self, request: tables_pb.GetTableSegmentsRequest
    ) -> tables_pb.GetTableSegmentsResponse:
        segments = self._tables.segments(request.topic_uuid)
        return tables_pb.GetTableSegmentsResponse(
            segments=map(messages.TABLE_SEGMENT.fields, segments)
        )

    def plan_table_commit(
        self, request: tables_pb.PlanTableCommitRequest
    ) -> tables_pb.PlanTableCommitResponse:
        planned = self._tables.plan(
            request.topic_uuid,
            request.number,
            _segments(request.add),
            list(request.remove),
            MaintenanceLease(request.lease, request.holder, request.token),
        )
        return tables_pb.PlanTableCommitResponse(planned=planned)

    def confirm_table_commit(
        self, request: tables_pb.ConfirmTableCommitRequest
    ) -> tables_pb.ConfirmTableCommitResponse:
        self._tables.confirm(request.topic_uuid, request.number)
        return tables_pb.ConfirmTableCommitResponse()

    def adopt_table(self, request: tables_pb.AdoptTableRequest) -> tables_pb.AdoptTableResponse:
        adopted = self._tables.adopt(
            request.topic_uuid,
            request.number,
            _segments(request.segments),
            MaintenanceLease(request.lease, request.holder, request.token),
        )
        return tables_pb.AdoptTableResponse(adopted=adopted)

    def forget_table(self, request: tables_pb.ForgetTableRequest) -> tables_pb.ForgetTableResponse:
        self._tables.forget(request.topic_uuid)
        return tables_pb.ForgetTableResponse()


def _segments(found: Iterable[tables_pb.TableSegment]) -> list[TableSegment]:
    return [
        replace(messages.TABLE_SEGMENT.decode(each), partition=canonical_partition(each.partition))
        for each in found
    ]


class TokenHandlers:
    """Handles the methods of `wings.v1.TokenService`."""

    def __init__(self, metadata: Metadata) -> None:
        self._tokens = metadata.tokens

    def create_token(self, request: tokens_pb.Token) -> tokens_pb.Token:
        created = self._tokens.create(messages.TOKEN.decode(request))
        return messages.TOKEN.encode(created)

    def delete_token(self, request: tokens_pb.DeleteTokenRequest) -> tokens_pb.Token:
        return messages.TOKEN.encode(self._tokens.revoke(request.name, request.id or None))

    def alter_token(self, request: tokens_pb.AlterTokenRequest) -> tokens_pb.Token:
        quotas = messages.QUOTAS.decode(request.quotas)
        altered = self._tokens.alter(request.name, quotas, request.id or None)
        return messages.TOKEN.encode(altered)

    def list_tokens(self, request: tokens_pb.ListTokensRequest) -> tokens_pb.ListTokensResponse:
        found, token = page(
            request,
            BY_TEXT,
            lambda after, most: self._tokens.all(after=after, items_max=most),
            lambda token: token.name,
        )
        return tokens_pb.ListTokensResponse(
            tokens=map(messages.TOKEN.fields, found), next_page_token=token
        )

    def count_token_changes(
        self, _: tokens_pb.CountTokenChangesRequest
    ) -> tokens_pb.CountTokenChangesResponse:
        return tokens_pb.CountTokenChangesResponse(changes=self._tokens.changes())


COPIES_MAX = 4
"""Copies at a time; each is a file as large as the metadata."""

SILENT_SECONDS_MAX = 600.0
"""A copy of which nothing was read for so long is deleted: its node is gone."""

READ_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes of one answer."""


@dataclass(slots=True)
class _OpenCopy:
    directory: "tempfile.TemporaryDirectory[str]"
    used_at: float

    @property
    def path(self) -> Path:
        return Path(self.directory.name) / "metadata.sqlite"


class CopyHandlers:
    """Handles the methods of `wings.v1.CopyService`."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._lock = threading.Lock()
        """Of the table; no other lock is taken under it."""
        self._copies: dict[str, _OpenCopy] = {}

    def begin_copy(self, _: copies_pb.BeginCopyRequest) -> copies_pb.BeginCopyResponse:
        self._end_silent()
        with self._lock:
            if len(self._copies) >= COPIES_MAX:
                raise ResourceExhausted(f"{COPIES_MAX} copies of the metadata are being read")
        copy_id = secrets.token_hex(16)
        copy = _OpenCopy(tempfile.TemporaryDirectory(prefix="wings-copy-"), time.monotonic())
        try:
            with self._metadata.copying() as write:
                write(copy.path)
        except BaseException:
            copy.directory.cleanup()
            raise
        with self._lock:
            copy.used_at = time.monotonic()
            self._copies[copy_id] = copy
        return copies_pb.BeginCopyResponse(copy_id=copy_id)

    def read_copy(self, request: copies_pb.ReadCopyRequest) -> copies_pb.ReadCopyResponse:
        with self._lock:
            copy = self._copies.get(request.copy_id)
            if copy is not None:
                copy.used_at = time.monotonic()
        try:
            if copy is not None:
                with copy.path.open("rb") as file:
                    file.seek(request.start)
                    return copies_pb.ReadCopyResponse(data=file.read(READ_BYTES_MAX))
        except FileNotFoundError:
            pass  # It was ended meanwhile.
        raise InvalidArgument("there is no such copy of the metadata, or not any more")

    def end_copy(self, request: copies_pb.EndCopyRequest) -> copies_pb.EndCopyResponse:
        with self._lock:
            copy = self._copies.pop(request.copy_id, None)
        if copy is not None:
            copy.directory.cleanup()
        return copies_pb.EndCopyResponse()

    def _end_silent(self) -> None:
        oldest = time.monotonic() - SILENT_SECONDS_MAX
        with self._lock:
            silent = [each for each, copy in self._copies.items() if copy.used_at < oldest]
            ended = [self._copies.pop(each) for each in silent]
        for copy in ended:
            copy.directory.cleanup()
