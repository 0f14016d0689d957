"""Groups of which it is not known whether metadata took them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import AlreadyExists, GroupNotFound, Unavailable
from wings_core.fetch.fetcher import Cancel
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.log import Log
from wings_core.metadata.store.groups import DatabaseGroups
from wings_core.model import ShareConfig, ShareGroup
from wings_core.names import TopicName
from wings_core.share.model import AcquireRequest
from wings_core.times import Deadline

ORDERS = TopicName.parse("orders")


def push(log: Log, *numbers: int) -> None:
    batch = pa.record_batch({"n": pa.array(numbers, pa.int64())})
    prepared = Preparer(log.admin.get_topic(ORDERS), log.limits).prepare(batch, PushOptions())
    log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()


@pytest.mark.parametrize("taken", [True, False])
def test_a_group_that_metadata_may_have_taken_is_served_where_it_has_from_its_start_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    create = DatabaseGroups.create

    def lose_answer(groups: DatabaseGroups, group: ShareGroup, **options: Any) -> ShareGroup:
        if taken:
            create(groups, group, **options)
        raise Unavailable("no answer", in_doubt=True)

    with DataDirectory.open(tmp_path) as directory:
        log = Log.open(OneDirectory(directory))
        try:
            log.admin.create_topic(ORDERS, pa.schema([pa.field("n", pa.int64())]))
            push(log, 0, 1, 2)
            with monkeypatch.context() as patched:
                patched.setattr(DatabaseGroups, "create", lose_answer)
                with pytest.raises(Unavailable):
                    log.shares.create(ORDERS, "billing", ShareConfig())
            if taken:
                with pytest.raises(AlreadyExists):
                    log.shares.create(ORDERS, "billing", ShareConfig())
            else:
                with pytest.raises(GroupNotFound):
                    log.shares.find(ORDERS, "billing")
            group = log.shares.create(ORDERS, "billing", ShareConfig(), if_not_exists=True)
            push(log, 3)
            (leased,) = log.shares.coordinator.acquire(
                AcquireRequest(group, "one", None, 10), Deadline.after(20), Cancel()
            )
            assert (leased.start_offset, leased.end_offset) == (3, 3)
        finally:
            log.close()
