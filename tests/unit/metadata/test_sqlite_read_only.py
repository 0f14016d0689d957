"""Reading a database beside a server, or at rest, without writing."""

import shutil
from pathlib import Path

import pytest
from fix_metadata import SCHEMA, B, batch_of, offsets_of

from wings_core.errors import Internal, TopicNotFound
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.partitions import UNPARTITIONED

ORDERS = DEFAULT_NAMESPACE.topic("orders")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "a directory? of #100% ordinary name"
    directory.mkdir()
    return directory / "metadata.db"


def fill(metadata: SqliteMetadata) -> Topic:
    topic = metadata.admin.create_topic(ORDERS, SCHEMA)
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 2})] * 3)
    return topic


def contents(path: Path) -> dict[str, bytes]:
    """The files of the database, but for the index of its log, which processes share."""
    return {
        file.name: file.read_bytes()
        for file in path.parent.iterdir()
        if not file.name.endswith("-shm")
    }


def test_a_reader_beside_a_writer_sees_each_commit_and_writes_nothing(path: Path) -> None:
    with SqliteMetadata(path) as server, SqliteMetadata(path, read_only=True) as reader:
        topic = fill(server)
        for count in range(4, 8):
            server.registry.commit([batch_of(topic, {UNPARTITIONED: 1})])
            before = contents(path)
            assert reader.admin.get_topic(ORDERS) == topic
            assert len(offsets_of(reader.registry, topic)) == count
            assert contents(path) == before


def test_a_reader_beside_a_writer_sees_topics_altered_and_deleted(path: Path) -> None:
    with SqliteMetadata(path) as server, SqliteMetadata(path, read_only=True) as reader:
        topic = fill(server)
        assert reader.admin.get_topic(ORDERS) == topic
        altered = server.admin.alter_topic(ORDERS, TopicConfig(batch_bytes_max=1))
        assert reader.admin.get_topic(ORDERS) == altered
        server.admin.delete_topic(ORDERS)
        with pytest.raises(TopicNotFound):
            reader.admin.get_topic(ORDERS)
        with pytest.raises(TopicNotFound):
            reader.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)


def test_a_database_at_rest_is_read_without_a_trace(path: Path) -> None:
    with SqliteMetadata(path) as server:
        topic = fill(server)
    assert list(contents(path)) == ["metadata.db"]
    before = contents(path)
    with SqliteMetadata(path, read_only=True) as reader:
        assert reader.admin.list_topics(DEFAULT_NAMESPACE) == [topic]
        assert offsets_of(reader.registry, topic) == [(0, 1), (2, 3), (4, 5)]
    assert [file.name for file in path.parent.iterdir()] == ["metadata.db"]
    assert contents(path) == before


def test_a_database_left_by_a_crash_is_read_and_not_changed(path: Path, tmp_path: Path) -> None:
    with SqliteMetadata(path) as server:
        topic = fill(server)
        crashed = Path(shutil.copytree(path.parent, tmp_path / "crashed")) / path.name
    (tmp_path / "crashed" / "metadata.db-shm").unlink()
    before = contents(crashed)
    assert before["metadata.db-wal"]
    with SqliteMetadata(crashed, read_only=True) as reader:
        assert offsets_of(reader.registry, topic) == [(0, 1), (2, 3), (4, 5)]
    assert contents(crashed) == before


def test_whoever_reads_only_cannot_write(path: Path) -> None:
    with SqliteMetadata(path) as server:
        topic = fill(server)
    before = contents(path)
    with SqliteMetadata(path, read_only=True) as reader:
        with pytest.raises(Internal, match="reading only"):
            reader.admin.create_namespace(NamespaceName("a", "b"))
        with pytest.raises(Internal, match="reading only"):
            reader.admin.delete_topic(ORDERS)
        with pytest.raises(Internal, match="reading only"):
            reader.registry.commit([batch_of(topic, {B: 1})])
        with pytest.raises(Internal, match="reading only"):
            reader.registry.purge(1)
    assert contents(path) == before


def test_metadata_that_is_not_there_is_not_created(path: Path) -> None:
    with pytest.raises(Internal, match="there is no metadata at"):
        SqliteMetadata(path, read_only=True)
    assert list(path.parent.iterdir()) == []
