"""The bounds of one process, all of them settings."""

from pydantic import BaseModel, ConfigDict, Field

MIB = 1024 * 1024


class Limits(BaseModel):
    """Named bounds on what a process runs, keeps and lets wait; beyond them it refuses."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        description="Largest HTTP answer, in bytes; fewer messages are returned, at least one.",
    )
    http_body_bytes_max: int = Field(
        default=64 * MIB, ge=1, description="Largest body of an HTTP push, in bytes."
    )
    http_pending_bytes_max: int = Field(
        default=256 * MIB,
        ge=1,
        description="Bytes of HTTP bodies in memory, requests and answers each (one may exceed it "
        "alone).",
    )
    batch_rows_max: int = Field(default=16 * MIB, ge=1, description="Most rows of a pushed batch.")
    memory_bytes_max: int = Field(
        default=0,
        ge=0,
        description="Bytes of pushes that are being read or wait to be committed, and of HTTP "
        "bodies; pushes wait for room. 0: a quarter of the machine's memory, or of the cgroup's.",
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
        description="Bytes of small pushes that metadata keeps until they are moved to storage; "
        "beyond it they go to storage at once, and are refused while that takes nothing. 0: none.",
    )
    object_flush_seconds: float = Field(
        default=0.25,
        ge=0,
        le=60,
        allow_inf_nan=False,
        description="How long a group commit gathers batches where each is an object of its own, "
        "in seconds.",
    )
    object_flush_bytes: int = Field(
        default=8 * MIB,
        ge=1,
        description="Bytes at which it is written before that time has passed.",
    )
    object_retry_seconds_max: float = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="How long a request to an object store is tried again, in seconds.",
    )
    object_attempt_seconds_max: float = Field(
        default=30.0,
        gt=0,
        allow_inf_nan=False,
        description="How long one attempt may take, in seconds.",
    )
    page_cache_bytes_max: int = Field(
        default=256 * MIB,
        ge=1,
        description="Bytes of pages of object stores kept in memory for their next readers.",
    )
    segment_bytes_max: int = Field(
        default=256 * MIB,
        ge=1,
        description="Size at which a segment file is closed and the next begun.",
    )
    disk_free_bytes_min: int = Field(
        default=128 * MIB,
        ge=0,
        description="Free bytes of the data directory's disk below which pushes are refused, and "
        "nothing is merged there. 0: never.",
    )
    calls_running_max: int = Field(
        default=16_384,
        ge=1,
        description="Most calls of Flight, and as many of HTTP, at once, those that wait included.",
    )
    http_connections_max: int = Field(
        default=16_384,
        ge=1,
        description="Most connections of HTTP at once, and a quarter of the files that the process "
        "may open; beyond it the ones without a request make room.",
    )
    flight_connections_max: int = Field(
        default=16_384,
        ge=1,
        description="Most connections of Flight at once, and half of the files that the process "
        "may open; beyond it the least used are closed.",
    )
    calls_waiting_max: int = Field(
        default=8_192, ge=1, description="Most long polls waiting at once."
    )
    sql_queries_max: int = Field(
        default=8, ge=1, le=256, description="Most SQL queries that run at once."
    )
    sql_seconds_max: float = Field(
        default=300.0,
        gt=0,
        allow_inf_nan=False,
        description="Longest run of a SQL query, its results being read included, in seconds.",
    )
    sql_rows_max: int = Field(default=100_000_000, ge=1, description="Most rows of a SQL result.")
    sql_memory_bytes_max: int = Field(
        default=512 * MIB,
        ge=32 * MIB,
        description="Bytes of memory of a SQL query, as far as DuckDB counts them; then it spills.",
    )
    sql_spill_bytes_max: int = Field(
        default=4096 * MIB,
        ge=0,
        description="Bytes that a SQL query may spill to the directory of temporary files.",
    )
    sql_threads_max: int = Field(
        default=0, ge=0, le=256, description="Threads of a SQL query. 0: one for each core."
    )
    stage_seconds_max: float = Field(
        default=86_400.0,
        ge=1,
        allow_inf_nan=False,
        description="Seconds after its last batch that a stage is kept without being published.",
    )
    maintenance_seconds: float = Field(
        default=60.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds between two looks for messages that are kept no longer.",
    )
