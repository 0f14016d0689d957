"""What a repair finds of the pages of a directory, also of those that metadata keeps itself."""

from contextlib import closing
from pathlib import Path

import pyarrow as pa

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.repair.pages import PageSource

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


def test_pages_that_metadata_keeps_itself_are_read_and_tell_their_partition(tmp_path: Path) -> None:
    rows = pa.record_batch({"k": ["a", "a"], "n": [1, 2]}, schema=SCHEMA)
    with DataDirectory.open(tmp_path / "data") as directory:
        with closing(Log.open(OneDirectory(directory), Limits(maintenance_seconds=1e6))) as log:
            topic = log.admin.create_topic(TopicName.parse("t"), SCHEMA, "k")
            prepared = Preparer(topic, log.limits).prepare(rows, PushOptions())
            log.group_commit.submit(PushStream(), prepared, awaited=True).accepted()
            value = Partition('"a"')
            (location,) = log.registry.locate(topic.uuid, value, 0, 10).locations
            inline = log.registry.read_inline([location.address.folio])
        with closing(PageSource(directory, inline)) as source:
            assert source.rows(topic, location) == rows
            assert source.partition_of(topic, location) == value
            assert source.is_right(topic, value, location)
        with closing(PageSource(directory, {})) as source:
            assert source.rows(topic, location) is None
