"""The archive of Spark's classes that a run has written once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from wings_spark.ingest.session import ClassArchive

JAVA = """#!/bin/sh
echo "$@" > {said}
for argument do
    case $argument in
        -XX:SharedClassListFile=*) classes=${{argument#*=}} ;;
        -XX:SharedArchiveFile=*) archive=${{argument#*=}} ;;
    esac
done
{does}
"""
WRITES = 'cp "$classes" "$archive"'


def home_of_java(directory: Path, does: str) -> Path:
    """Make the home of a Java that does this where it is to write an archive."""
    home = directory / "home"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    java = home / "bin" / "java"
    java.write_text(JAVA.format(said=directory / "said", does=does))
    java.chmod(0o755)
    return home


def started(archive: ClassArchive, home: Path) -> str:
    """Start Java as a session does, and have it load a class; returns its options."""
    options = archive.options(home / "bin" / "java", "a version")
    if options.startswith("-XX:DumpLoadedClassList="):
        Path(options.partition("=")[2]).write_text("java/lang/Object\njava/la")
    properties = {"java.home": str(home), "java.class.path": "spark.jar"}
    system = SimpleNamespace(getProperty=properties.get)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=jvm))
    archive.started(session, "-XX:+UseSerialGC")
    return options


def ended(archive: ClassArchive) -> None:
    """Wait until the process that writes has ended, and take note of it."""
    process = cast("Any", archive)._process
    if process is not None:  # Else it ended before the archive looked for the first time.
        process.wait()
        archive.write()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    found = tmp_path / "checkpoint"
    found.mkdir()
    return found


def test_the_first_run_has_an_archive_written_and_the_next_maps_it(
    tmp_path: Path, checkpoint: Path
) -> None:
    home = home_of_java(tmp_path, WRITES)
    with ClassArchive(checkpoint, wanted=True) as archive:
        started(archive, home)
        archive.write()
        ended(archive)
    (found,) = checkpoint.iterdir()
    assert found.read_text() == "java/lang/Object\n", "no line that Java has not ended"
    said = (tmp_path / "said").read_text()
    assert "-Xshare:dump" in said
    assert "-XX:+UseSerialGC" in said
    assert "-cp spark.jar" in said
    with ClassArchive(checkpoint, wanted=True) as archive:
        assert f"-XX:SharedArchiveFile={found}" in started(archive, home)
        archive.write()
        assert archive.options(home / "bin" / "java", "another").startswith("-XX:DumpLoaded")
    assert list(checkpoint.iterdir()) == [found]


def test_an_archive_that_could_not_be_written_is_not_tried_again(
    tmp_path: Path, checkpoint: Path
) -> None:
    home = home_of_java(tmp_path, "kill -9 $$")
    with ClassArchive(checkpoint, wanted=True) as archive:
        started(archive, home)
        archive.write()
        ended(archive)
    with ClassArchive(checkpoint, wanted=True) as archive:
        assert started(archive, home) == ""


def test_a_run_that_ends_first_leaves_the_archive_to_the_next(
    tmp_path: Path, checkpoint: Path
) -> None:
    home = home_of_java(tmp_path, "exec sleep 600")
    with ClassArchive(checkpoint, wanted=True) as archive:
        started(archive, home)
        archive.write()
    with ClassArchive(checkpoint, wanted=True) as archive:
        assert started(archive, home).startswith("-XX:DumpLoadedClassList=")


@pytest.mark.parametrize(("wanted", "name"), [(False, "checkpoint"), (True, "a b")])
def test_java_gets_no_option_where_no_archive_is_wanted_or_can_be_named(
    tmp_path: Path, *, wanted: bool, name: str
) -> None:
    home = home_of_java(tmp_path, WRITES)
    with ClassArchive(tmp_path / name, wanted=wanted) as archive:
        assert started(archive, home) == ""
        archive.write()
    assert not (tmp_path / "said").exists()
