"""A data directory and its metadata belong together, wherever that is."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from fix_metadata import SCHEMA
from fix_postgres import PASSWORD, PostgresServer
from forked_commands import FORKED

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import InvalidArgument
from wings_core.log import Log
from wings_core.metadata.open import open_metadata
from wings_core.names import DEFAULT_NAMESPACE

NAME = DEFAULT_NAMESPACE.topic("orders")
LEASES = ("topic partition", "topic table", "drain", "backup/1")

LEASE = """
import sys
from wings_core.data_directory import DataDirectory
from wings_core.metadata.open import open_metadata
from wings_core.model import Node
with DataDirectory.open(sys.argv[1]) as directory:
    metadata = open_metadata(directory, sys.argv[2] or None)
    for name in sys.argv[3:]:
        assert metadata.maintenance.acquire_lease(name, "killed", 3_600) == 1
    metadata.nodes.renew(Node("killed", "127.0.0.1:1"), 3_600)
    print("leased", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


def test_a_directory_served_with_postgres_is_served_with_it_again(url: str, tmp_path: Path) -> None:
    for number in range(2):
        with DataDirectory.open(tmp_path) as directory:
            log = Log.open(OneDirectory(directory, metadata=url))
            topic = log.admin.create_topic(NAME, SCHEMA, if_not_exists=True)
            log.close()
            assert not directory.metadata.exists()
            metadata = open_metadata(directory, url, read_only=True)
            assert metadata.admin.list_topics(DEFAULT_NAMESPACE) == [topic], number
            metadata.close()


def test_a_directory_with_metadata_of_its_own_is_not_served_with_postgres(
    url: str, tmp_path: Path
) -> None:
    with DataDirectory.open(tmp_path) as directory:
        Log.open(OneDirectory(directory)).close()
        for read_only in (False, True):
            with pytest.raises(InvalidArgument, match="has its metadata in"):
                open_metadata(directory, url, read_only=read_only)


def test_a_directory_whose_metadata_is_in_postgres_is_not_served_without(
    url: str, tmp_path: Path
) -> None:
    with DataDirectory.open(tmp_path) as directory:
        Log.open(OneDirectory(directory, metadata=url)).close()
        for read_only in (False, True):
            with pytest.raises(InvalidArgument, match="has its metadata in PostgreSQL"):
                open_metadata(directory, read_only=read_only)
        assert not directory.metadata.exists()


def test_another_directory_or_other_metadata_is_refused_and_takes_nothing(
    url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    with DataDirectory.open(tmp_path / "one") as one, DataDirectory.open(tmp_path / "two") as two:
        Log.open(OneDirectory(one, metadata=url)).close()
        with pytest.raises(InvalidArgument, match="belongs to the data directory"):
            Log.open(OneDirectory(two, metadata=url))
        other = postgres.new_database()
        with pytest.raises(InvalidArgument, match="belongs to the metadata"):
            Log.open(OneDirectory(one, metadata=other))
        Log.open(OneDirectory(one, metadata=url)).close()


def test_nodes_are_refused_the_directory_of_another_server_also_one_without_messages(
    url: str, tmp_path: Path
) -> None:
    """Else that server would take their messages for garbage when it is started again."""
    with DataDirectory.open(tmp_path) as directory:
        Log.open(OneDirectory(directory, metadata=url)).close()
        assert not any(directory.segments.iterdir())
        with pytest.raises(InvalidArgument, match="belong to metadata"):
            directory.bind("that of a service")


def test_a_server_is_refused_the_directory_of_nodes(url: str, tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path) as directory:
        directory.bind("that of a service")
        with pytest.raises(InvalidArgument, match="belong to metadata that of a service"):
            Log.open(OneDirectory(directory, metadata=url))


def test_a_start_cut_short_is_finished_by_the_next(url: str, tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path) as directory:
        Log.open(OneDirectory(directory, metadata=url)).close()
        file = tmp_path / "METADATA"
        whole = file.read_text()
        file.write_text(whole.partition(" metadata=")[0] + "\n")
        Log.open(OneDirectory(directory, metadata=url)).close()
        assert file.read_text() == whole
        assert PASSWORD not in whole
        file.write_text("nonsense\n")
        with pytest.raises(InvalidArgument, match="cannot be understood"):
            Log.open(OneDirectory(directory, metadata=url))


@pytest.mark.programs
@pytest.mark.parametrize("of_postgres", [False, True])
def test_leases_of_a_killed_process_are_free_once_its_directory_is_opened(
    request: pytest.FixtureRequest, tmp_path: Path, of_postgres: bool
) -> None:
    url = request.getfixturevalue("url") if of_postgres else ""
    command = [sys.executable, "-c", FORKED + LEASE, str(tmp_path), url, *LEASES]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "leased\n"
        process.kill()
    with (
        DataDirectory.open(tmp_path) as directory,
        closing(open_metadata(directory, url or None)) as metadata,
    ):
        assert metadata.nodes.live() == []
        tokens = [metadata.maintenance.acquire_lease(name, "next", 60) for name in LEASES]
        # Of another number: what the one before did under them is refused.
        assert tokens == [2] * len(LEASES)
        with closing(open_metadata(directory, url or None, read_only=True)):
            assert metadata.maintenance.acquire_lease("drain", "a reader", 60) is None
