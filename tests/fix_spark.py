"""One Spark session for all tests marked `spark`, and what they load from it."""

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wings_server.testing import RunningServer

SETTINGS = {
    # Any port, for the test that serves Spark Connect from this session's Java.
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    # Spark's own choice runs `readlink`, a process, for each file of a checkpoint that it looks at.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """A local session of two cores; starting it takes seconds, so all tests share it."""
    from wings_spark.testing import QUICK, local_session

    on_ctrl_c = signal.getsignal(signal.SIGINT)
    with local_session(settings=QUICK | SETTINGS, attempts=2) as session:
        # PySpark's own handler asks Java first, in tests of other things than Spark too.
        signal.signal(signal.SIGINT, on_ctrl_c)
        yield session


class Load(Protocol):
    """Loads a topic of the module's server; options by their names."""

    def __call__(self, topic: str | None = None, **options: object) -> "DataFrame": ...


@pytest.fixture
def load(spark: "SparkSession", server: "RunningServer") -> Load:
    """Load a topic by the data source, found by its name."""

    def load_topic(topic: str | None = None, **options: object) -> "DataFrame":
        reader = spark.read.format("wings").option("endpoint", server.flight)
        if topic is not None:
            reader = reader.option("topic", topic)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return load_topic
