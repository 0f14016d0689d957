import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fix_calls import Calls
from forked_commands import FORKED

from wings_core.data_directory import FORMAT_VERSION, DataDirectory
from wings_core.errors import InvalidArgument, Unavailable

HOLD = """
import sys
from wings_core.data_directory import DataDirectory
with DataDirectory.open(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_opening_makes_a_private_directory_with_its_layout(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    with DataDirectory.open(path) as directory:
        assert directory.locked
        assert directory.path == path
        assert directory.metadata == path / "metadata.sqlite"
        assert directory.segments.is_dir()
        assert {entry.name for entry in path.iterdir()} == {
            "FORMAT",
            "LOCK",
            "METADATA.LOCK",
            "segments",
        }
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(directory.segments.stat().st_mode) == 0o700
    assert not directory.locked


def test_a_closed_directory_opens_again(tmp_path: Path) -> None:
    for _ in range(2):
        with DataDirectory.open(tmp_path) as directory:
            assert directory.locked


def test_closing_twice_does_nothing(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path)
    directory.close()
    directory.close()
    with DataDirectory.open(tmp_path) as again:
        directory.close()
        with pytest.raises(Unavailable):
            DataDirectory.open(tmp_path)
        assert again.locked


@pytest.mark.programs
def test_a_directory_that_another_process_holds_is_refused_until_that_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKED + HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(Unavailable) as caught:
                DataDirectory.open(tmp_path)
            assert str(caught.value) == (
                f"{tmp_path} is in use by another server, process {holder.pid}"
            )
            assert caught.value.pid == holder.pid
            with DataDirectory.open_read_only(tmp_path) as directory:
                assert not directory.locked
        finally:
            holder.kill()
            holder.wait()
    with DataDirectory.open(tmp_path) as directory:
        assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"


def test_a_directory_that_is_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    for name in ("b", "a", "d", "c"):
        (tmp_path / name).touch()
    for opener in (DataDirectory.open, DataDirectory.open_read_only):
        with pytest.raises(InvalidArgument, match="it holds a, b, c and 1 more"):
            opener(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {"a", "b", "c", "d"}


def test_a_fresh_volume_is_taken_for_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    with DataDirectory.open(tmp_path) as directory:
        assert directory.segments.is_dir()


@pytest.mark.parametrize(
    "left", [["LOCK"], ["LOCK", "FORMAT.new"], ["FORMAT.0123456789abcdef.new"]]
)
def test_a_making_that_was_cut_short_is_finished(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        (tmp_path / name).touch()
    with DataDirectory.open(tmp_path) as directory:
        assert directory.segments.is_dir()
    with DataDirectory.open_read_only(tmp_path) as directory:
        assert directory.path == tmp_path


def test_a_newer_format_is_refused_by_its_number(tmp_path: Path) -> None:
    newer = FORMAT_VERSION + 1
    DataDirectory.open(tmp_path).close()
    (tmp_path / "FORMAT").write_text(f"wings data directory, format {newer}\n")
    for opener in (DataDirectory.open, DataDirectory.open_read_only):
        with pytest.raises(InvalidArgument, match=f"has format {newer}, .* up to") as caught:
            opener(tmp_path)
        assert caught.value.format == newer


def test_a_foreign_format_file_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "FORMAT").write_bytes(b"RIFF\xff")
    with pytest.raises(InvalidArgument, match="its FORMAT file says 'RIFF"):
        DataDirectory.open(tmp_path)


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for opener in (DataDirectory.open, DataDirectory.open_read_only):
        with pytest.raises(InvalidArgument, match="is not a directory"):
            opener(file)
    with pytest.raises(InvalidArgument, match="is not a directory"):
        DataDirectory.open(file / "below")


def test_reading_what_is_not_there_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="does not exist"):
        DataDirectory.open_read_only(tmp_path / "none")
    with pytest.raises(InvalidArgument, match="it is empty"):
        DataDirectory.open_read_only(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_the_file_system_refuses_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="File name too long"):
        DataDirectory.open(tmp_path / ("x" * 300))


def test_nodes_share_a_directory_that_an_embedded_server_is_kept_out_of(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path, "pages"), DataDirectory.open(tmp_path, "pages"):
        with pytest.raises(Unavailable):
            DataDirectory.open(tmp_path)
        # The metadata service may keep its file beside the pages.
        with (
            DataDirectory.open(tmp_path, "metadata"),
            pytest.raises(Unavailable, match="in use"),
        ):
            DataDirectory.open(tmp_path, "metadata")
    with DataDirectory.open(tmp_path):
        for use in ("pages", "metadata"):
            with pytest.raises(Unavailable):
                DataDirectory.open(tmp_path, use)
    DataDirectory.open(tmp_path).close()


def test_pages_belong_to_the_metadata_that_they_were_first_used_with(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path, "pages") as directory:
        directory.bind("one")
        directory.bind("one")
        with pytest.raises(InvalidArgument, match="belong to metadata one, not to other"):
            directory.bind("other")
        with pytest.raises(InvalidArgument):
            directory.bind("other", own=True)


@pytest.mark.parametrize("what", ["metadata", "store"])
def test_of_nodes_that_start_at_once_with_different_places_one_has_its_way(
    tmp_path: Path, what: str
) -> None:
    nodes = [DataDirectory.open(tmp_path, "pages") for _ in range(8)]
    together = threading.Barrier(len(nodes))

    def start(number: int) -> str | None:
        together.wait()
        try:
            if what == "metadata":
                nodes[number].bind(f"id-{number}")
            else:
                nodes[number].keep_object_store("hot", f"s3://bucket-{number}")
        except InvalidArgument as error:
            return str(error)
        return None

    with ThreadPoolExecutor(len(nodes)) as threads:
        refusals = list(threads.map(start, range(len(nodes))))
    assert refusals.count(None) == 1
    winner = refusals.index(None)
    named = f"id-{winner}" if what == "metadata" else f"s3://bucket-{winner}"
    assert all(named in refusal for refusal in refusals if refusal is not None)
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".new")]
    for node in nodes:
        node.close()


def test_a_directory_that_another_node_makes_while_it_is_looked_at_is_opened(
    tmp_path: Path, calls: Calls
) -> None:
    others: list[DataDirectory] = []

    def look(_: Path) -> None:
        others.append(DataDirectory.open(tmp_path, "pages"))
        others[0].bind("one")

    calls.before(Path, "iterdir", look, times=1)
    with DataDirectory.open(tmp_path, "pages") as directory, others[0]:
        directory.bind("one")


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, calls: Calls) -> None:
    calls.fail(os, "link", OSError(errno.EPERM, "Operation not permitted"))
    for store_id in ("one", "one"):
        with DataDirectory.open(tmp_path) as directory:
            directory.bind(store_id)
            assert not list(tmp_path.glob("*.new"))
            with pytest.raises(InvalidArgument, match="one, not to other"):
                directory.bind("other")


def test_pages_without_an_owner_are_taken_over_by_the_metadata_beside_them_alone(
    tmp_path: Path,
) -> None:
    with DataDirectory.open(tmp_path) as directory:
        (directory.segments / "some.segment").touch()
        with pytest.raises(InvalidArgument, match="unknown origin"):
            directory.bind("elsewhere")
        directory.bind("beside", own=True)
        directory.bind("beside")


def test_a_directory_keeps_to_the_object_store_that_it_was_first_used_with(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path) as directory:
        assert directory.object_store("hot", None) is None
        assert directory.object_store("hot", "s3://bucket/one") == "s3://bucket/one"
        directory.keep_object_store("hot", "s3://bucket/one")
        directory.keep_object_store("hot", "s3://bucket/one")
    with DataDirectory.open_read_only(tmp_path) as directory:
        assert directory.object_store("hot", None) == "s3://bucket/one"
        with pytest.raises(InvalidArgument, match="at s3://bucket/one, and cannot have them at"):
            directory.object_store("hot", "s3://bucket/two")


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_start_makes_durable_what_the_one_before_it_could_not(
    tmp_path: Path, synced: Callable[[Path | None], list[Path]]
) -> None:
    path = tmp_path / "deep" / "data"
    for each in (tmp_path, path.parent, path):
        synced(each)
        with pytest.raises(Unavailable, match="Input/output error"):
            DataDirectory.open(path)
        assert not each.joinpath("deep").exists()
        assert not each.joinpath("data").exists()
    done = synced(None)
    with DataDirectory.open(path) as directory:
        assert {path, path.parent} <= set(done)
        synced(path)
        with pytest.raises(Unavailable, match="Input/output error"):
            directory.bind("its metadata", own=True)
    done = synced(None)
    with DataDirectory.open(path) as directory:
        assert path in done
        directory.bind("its metadata")
