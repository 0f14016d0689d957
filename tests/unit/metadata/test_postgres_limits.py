"""What PostgreSQL cannot keep is refused by itself, with and without a service."""

import random
import string
from collections.abc import Generator
from contextlib import ExitStack

import psycopg
import pytest
from fix_metadata import NOON, SCHEMA, A, accepted, batch_of, offsets_of
from fix_postgres import PostgresServer, empty_schema
from psycopg import sql
from psycopg.conninfo import make_conninfo

from wings_core.errors import InvalidArgument, StageNotFound
from wings_core.metadata.checks import ID_BYTES_MAX
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.postgres import PostgresMetadata
from wings_core.metadata.postgres.database import PARTITION_BYTES_MAX
from wings_core.metadata.remote import RemoteMetadata
from wings_core.model import Rejected, StageEntry
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import VALUE_BYTES_MAX, Partition
from wings_server.metadata.service import MetadataService
from wings_server.settings import Address

NAME = DEFAULT_NAMESPACE.topic("orders")


@pytest.fixture(params=["here", "through a service"])
def metadata(request: pytest.FixtureRequest, postgres: PostgresServer) -> Generator[Metadata]:
    with ExitStack() as stack:
        schema = stack.enter_context(empty_schema(postgres, NOON))
        here = stack.enter_context(PostgresMetadata(postgres.url, schema=schema))
        if request.param == "here":
            yield here
            return
        service = MetadataService(here, here.store_id, Address("127.0.0.1", 0))
        service.start()
        stack.callback(service.stop, drain_seconds=0)
        remote = RemoteMetadata(str(service.address))
        stack.callback(remote.close)
        yield remote


def value_of(size: int) -> Partition:
    """Return a partition of so many bytes that hardly get fewer by compression."""
    letters = random.Random(size).choices(string.ascii_letters + string.digits, k=size - 2)
    return Partition(f'"{"".join(letters)}"')


@pytest.mark.parametrize("size", [PARTITION_BYTES_MAX + 1, VALUE_BYTES_MAX])
def test_a_partition_value_that_is_too_long_is_refused_with_its_batch_alone(
    metadata: Metadata, size: int
) -> None:
    topic = metadata.admin.create_topic(NAME, SCHEMA, "key")
    long = value_of(size)
    entry = StageEntry("s", "w", first=True)
    results = metadata.registry.commit(
        [
            batch_of(topic, {A: 1}, stream=1),
            batch_of(topic, {A: 1, long: 1}, stream=2),
            batch_of(topic, {A: 1}, stream=3, expected=(long, 0)),
            batch_of(topic, {A: 1, long: 1}, stream=4, sequence=("p", 0)),
            batch_of(topic, {long: 1}, stream=5, stage=entry),
            batch_of(topic, {A: 1}, stream=6),
        ]
    )
    for result in results[1:-1]:
        assert isinstance(result, Rejected)
        assert isinstance(result.error, InvalidArgument)
        assert f"{size} bytes" in result.error.message
        assert f"at most {PARTITION_BYTES_MAX}" in result.error.message
    assert [accepted(result)[0].start_offset for result in (results[0], results[-1])] == [0, 1]
    assert [state.partition for state in metadata.registry.partition_states(topic.uuid)] == [A]
    with pytest.raises(StageNotFound):
        metadata.stages.publish("w", 0, ["s"])
    with pytest.raises(InvalidArgument, match=f"at most {PARTITION_BYTES_MAX}"):
        metadata.registry.commit_offsets("c", [(topic, A, 1), (topic, long, 1)])
    assert metadata.registry.get_offsets("c") == []
    # It can be asked for, as any that nothing was ever written to.
    assert metadata.registry.locate(topic.uuid, long, 0, 1).locations == ()


def test_the_longest_partition_value_is_kept_and_published_with_the_longest_names(
    metadata: Metadata,
) -> None:
    topic = metadata.admin.create_topic(NAME, SCHEMA, "key")
    long = value_of(PARTITION_BYTES_MAX)
    producer = value_of(ID_BYTES_MAX)
    (result,) = metadata.registry.commit([batch_of(topic, {long: 2}, sequence=(producer, 0))])
    assert accepted(result)[0].start_offset == 0
    metadata.registry.commit([batch_of(topic, {long: 3}, stage=StageEntry("s", "w", first=True))])
    (published,) = metadata.stages.publish("w", 0, ["s"]).committed
    assert (published.partition, published.start_offset) == (long, 2)
    assert offsets_of(metadata.registry, topic, long) == [(0, 1), (2, 4)]
    metadata.registry.commit_offsets(producer, [(topic, long, 5)])
    assert [offset.offset for offset in metadata.registry.get_offsets(producer)] == [5]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_is_refused_when_it_is_opened(
    postgres: PostgresServer, encoding: str
) -> None:
    name = f"in_{encoding.lower()}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE 'C'").format(
                sql.Identifier(name), encoding
            )
        )
    with pytest.raises(InvalidArgument, match=f"encoded in {encoding}.* needs one in UTF8"):
        PostgresMetadata(make_conninfo(postgres.url, dbname=name))


def test_text_goes_to_the_server_in_utf_8_whatever_the_address_says(
    postgres: PostgresServer,
) -> None:
    with empty_schema(postgres, NOON) as schema:
        url = make_conninfo(postgres.url, client_encoding="LATIN1")
        with PostgresMetadata(url, schema=schema) as metadata:
            topic = metadata.admin.create_topic(NAME, SCHEMA, "key")
            partition = Partition('"日本"')
            accepted(metadata.registry.commit([batch_of(topic, {partition: 1})])[0])
            (state,) = metadata.registry.partition_states(topic.uuid)
            assert state.partition == partition
