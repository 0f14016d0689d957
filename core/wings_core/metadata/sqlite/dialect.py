"""SQLite's own statements, as a `store.database.Dialect`."""

from wings_core.metadata.sqlite.consumers import write_offsets
from wings_core.metadata.sqlite.locate import (
    any_has_data,
    locate,
    locate_many,
    locate_slices,
    offsets_for_timestamps,
)
from wings_core.metadata.sqlite.pages import add_pages
from wings_core.metadata.sqlite.publish import move_stages
from wings_core.metadata.sqlite.purge import count_off, purge, retire
from wings_core.metadata.sqlite.shards import (
    acquire_shards,
    find_shards,
    open_shards,
    reset_shards,
    write_progress,
)
from wings_core.metadata.sqlite.stages import delete_stages
from wings_core.partitions import VALUE_BYTES_MAX

__all__ = [
    "acquire_shards",
    "add_pages",
    "any_has_data",
    "count_off",
    "delete_stages",
    "find_shards",
    "locate",
    "locate_many",
    "locate_slices",
    "move_stages",
    "offsets_for_timestamps",
    "open_shards",
    "partition_bytes_max",
    "purge",
    "reset_shards",
    "retire",
    "write_offsets",
    "write_progress",
]

partition_bytes_max: int = VALUE_BYTES_MAX
