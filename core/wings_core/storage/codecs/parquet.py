"""The codec of row groups in Parquet files; see storage/parquet_file.py."""

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.errors import StorageCorrupt
from wings_core.model import PageAddress, Topic
from wings_core.storage.codecs.interfaces import MergedFile
from wings_core.storage.codecs.segment import SegmentCodec
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.parquet_file import OFFSET_COLUMN, PARQUET_SUFFIX, ParquetWriter


class ParquetCodec(SegmentCodec):
    """The `MergeCodec` of `PageFormat.PARQUET`."""

    suffix = PARQUET_SUFFIX

    def begin_file(self, topic: Topic, about: Mapping[str, str]) -> MergedFile:
        """See `MergeCodec.begin_file`."""
        return ParquetWriter(topic, about)

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """See `PageCodec.check`; offsets must be consecutive."""
        rows = super().check(store, topic, address)
        field = pa.field(OFFSET_COLUMN, pa.int64())
        offsets = store.read(address, topic.uuid, pa.schema([field])).column(0)
        steps = cast("Any", pc).unique(pc.subtract(offsets[1:], offsets[:-1])).to_pylist()
        if offsets.null_count or steps not in ([], [1]):
            raise StorageCorrupt("its offsets are not consecutive")
        return rows
