"""The limits of one process, which are settings."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from wings_core.times import DURATION

MIB = 1024 * 1024


class Limits(BaseModel):
    """Bounds of a process's work, memory and queues; requests beyond them are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    batch_bytes_max: int = Field(
        default=64 * MIB, ge=1, description="Largest pushed batch, in bytes of Arrow buffers."
    )
    batch_partitions_max: int = Field(
        default=10_000, ge=1, description="Most partitions that one pushed batch may touch."
    )
    wire_rows_max: int = Field(
        default=65_536, ge=1, description="Most rows of one batch sent to a reader."
    )
    wire_bytes_max: int = Field(
        default=16 * MIB,
        ge=1,
        description="Largest batch sent to a reader, in bytes (one row may exceed it).",
    )
    http_bytes_max: int = Field(
        default=32 * MIB,
        ge=1,
        description="Largest HTTP response, in bytes; fewer messages are returned, at least one.",
    )
    http_body_bytes_max: int = Field(
        default=64 * MIB, ge=1, description="Largest body of an HTTP push, in bytes."
    )
    http_pending_bytes_max: int = Field(
        default=256 * MIB,
        ge=1,
        description="Bytes of HTTP bodies in memory, of requests and of responses each "
        "(a single one may exceed it).",
    )
    batch_rows_max: int = Field(default=16 * MIB, ge=1, description="Most rows of a pushed batch.")
    memory_bytes_max: int = Field(
        default=0,
        ge=0,
        description="Bytes of pushes being read or waiting to be committed, and of HTTP bodies; "
        "pushes wait for room. 0: a quarter of the machine's memory, or of the cgroup's.",
    )
    pending_bytes_max: int = Field(
        default=256 * MIB,
        ge=1,
        description="Bytes received and not yet committed; pushes wait for room.",
    )
    flush_bytes_max: int = Field(
        default=64 * MIB,
        ge=1,
        description="Most bytes of one group commit (one batch may exceed it).",
    )
    inline_bytes_max: int = Field(
        default=64 * MIB,
        ge=0,
        description="Bytes of small pushes that metadata stores until they move to storage; beyond "
        "it pushes go to storage directly, and are rejected while storage fails. 0: none.",
    )
    inline_seconds: Annotated[float, DURATION] = Field(
        default=0.75,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which small pushes in metadata begin to move to storage.",
    )
    object_flush_seconds: Annotated[float, DURATION] = Field(
        default=0.25,
        ge=0,
        le=60,
        allow_inf_nan=False,
        description="Seconds for which a group commit gathers batches, "
        "if each commit is an object.",
    )
    object_flush_bytes: int = Field(
        default=8 * MIB,
        ge=1,
        description="Bytes at which such a group commit is written before that time.",
    )
    object_retry_seconds_max: Annotated[float, DURATION] = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds for which a failed request to an object store is retried.",
    )
    object_attempt_seconds_max: Annotated[float, DURATION] = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="Timeout of one attempt, in seconds.",
    )
    page_cache_bytes_max: int = Field(
        default=256 * MIB,
        ge=1,
        description="Bytes of pages of object stores cached in memory.",
    )
    segment_bytes_max: int = Field(
        default=256 * MIB,
        ge=1,
        description="Size in bytes at which a segment file is closed and the next one begun.",
    )
    disk_free_bytes_min: int = Field(
        default=128 * MIB,
        ge=0,
        description="Free bytes of the data directory's disk below which pushes are rejected and "
        "little is merged. 0: never.",
    )
    calls_running_max: int = Field(
        default=16_384,
        ge=1,
        description="Most concurrent Flight calls, and as many HTTP calls, waiting ones included.",
    )
    http_connections_max: int = Field(
        default=16_384,
        ge=1,
        description="Most concurrent HTTP connections, at most a quarter of the process's file "
        "limit; beyond it idle ones are closed.",
    )
    flight_connections_max: int = Field(
        default=16_384,
        ge=1,
        description="Most concurrent Flight connections, at most half of the process's file limit; "
        "beyond it the least recently used are closed.",
    )
    calls_waiting_max: int = Field(default=8_192, ge=1, description="Most concurrent long polls.")
    sql_queries_max: int = Field(
        default=8, ge=1, le=256, description="Most concurrent SQL queries."
    )
    sql_seconds_max: Annotated[float, DURATION] = Field(
        default=300.0,
        gt=0,
        allow_inf_nan=False,
        description="Longest run of a SQL query in seconds, reading its results included.",
    )
    sql_rows_max: int = Field(default=100_000_000, ge=1, description="Most rows of a SQL result.")
    sql_memory_bytes_max: int = Field(
        default=512 * MIB,
        ge=32 * MIB,
        description="Bytes of memory of a SQL query, as counted by DuckDB, beyond which it spills.",
    )
    sql_spill_bytes_max: int = Field(
        default=4096 * MIB,
        ge=0,
        description="Most bytes that a SQL query may spill to the directory of temporary files.",
    )
    sql_threads_max: int = Field(
        default=0, ge=0, le=256, description="Threads of a SQL query. 0: one per core."
    )
    stage_seconds_max: Annotated[float, DURATION] = Field(
        default=86_400.0,
        ge=1,
        allow_inf_nan=False,
        description="Seconds for which an unpublished stage is kept after its last batch.",
    )
    maintenance_seconds: Annotated[float, DURATION] = Field(
        default=60.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds between two checks for expired messages.",
    )
