"""PostgreSQL's own statements, as a `store.database.Dialect`."""

from wings_core.metadata.postgres.commit import PARTITION_BYTES_MAX
from wings_core.metadata.postgres.consumers import write_offsets
from wings_core.metadata.postgres.locate import (
    any_has_data,
    locate,
    locate_many,
    locate_slices,
    offsets_for_timestamps,
)
from wings_core.metadata.postgres.pages import add_pages
from wings_core.metadata.postgres.publish import move_stages
from wings_core.metadata.postgres.purge import count_off, purge, retire
from wings_core.metadata.postgres.shards import (
    acquire_shards,
    find_shards,
    open_shards,
    reset_shards,
    write_progress,
)
from wings_core.metadata.postgres.stages import delete_stages

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

partition_bytes_max: int = PARTITION_BYTES_MAX
