"""A queue's writers choose files within what its source may read, and no others."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fix_ingest import Ingest, write_jsonl

from wings_core.queue.journal import Fate, Outcome
from wings_spark.ingest import status
from wings_spark.ingest.run import figures
from wings_spark.ingest.settings import SourceSettings

if TYPE_CHECKING:
    from fix_aws import Aws


def linked(link: Path, target: Path) -> Path:
    link.symlink_to(target)
    return link


def linked_directory(root: Path) -> Path:
    linked(root / "in" / "folder", root / "out")
    return root / "in" / "folder" / "secret.jsonl"


REFUSED: dict[str, Callable[[Path], object]] = {
    "another file of the machine": lambda _: "/etc/passwd",
    "one that is not there": lambda _: "/etc/there-is-no-such-file",
    "by its URI": lambda _: "file:///etc/group",
    "a neighbour by its name's beginning": lambda root: root / "in-secret" / "a.jsonl",
    "the directory above": lambda root: f"{root}/in/../out/secret.jsonl",
    "the directory above, encoded": lambda root: f"file://{root}/in/%2E%2E/in-secret/a.jsonl",
    "within it, by way of above": lambda root: f"{root}/in/../in/a.jsonl",
    "a link": lambda root: linked(root / "in" / "link.jsonl", root / "out" / "secret.jsonl"),
    "a link that leads nowhere": lambda root: linked(root / "in" / "l", Path("/etc/not-there")),
    "a folder that is a link": linked_directory,
    "a process's own files": lambda _: "/proc/self/environ",
    "a bucket": lambda _: "s3://another/a.jsonl",
    "a bucket of Google's": lambda _: "gs://another/a.jsonl",
    "a container of Azure's": lambda _: "abfss://c@acme.dfs.core.windows.net/a.jsonl",
    "an address of a cloud's metadata": lambda _: "s3://169.254.169.254/latest/meta-data",
}

UNINTELLIGIBLE = (
    "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
    "file://169.254.169.254/latest/meta-data",
    "abfss://169.254.169.254/latest/meta-data",
    "in/a.jsonl",
)


def published(outcomes: list[Outcome]) -> dict[Fate, int]:
    fates = [file.fate for outcome in outcomes for file in outcome.files]
    return {fate: fates.count(fate) for fate in set(fates)}


def test_what_is_not_in_its_places_is_refused_counted_and_a_dead_letter(
    ingest: Ingest, topic: str
) -> None:
    for name in ("in", "in-secret", "out"):
        (ingest.path / name).mkdir()
    inside = write_jsonl(ingest.path / "in" / "a.jsonl", range(3))
    for name in ("in-secret/a.jsonl", "out/secret.jsonl"):
        write_jsonl(ingest.path / name, range(100, 103))
    announced = {what: str(make(ingest.path)) for what, make in REFUSED.items()}
    nested = linked(ingest.path / "in" / "again.jsonl", inside)
    ingest.queue.send([str(inside), *announced.values(), *UNINTELLIGIBLE, str(nested)])
    dead = f"{topic}-dead"
    settings = ingest.source(
        files={"allowed_prefixes": [str(ingest.path / "in")]}, dead_letters={"topic": dead}
    )
    outcomes = ingest.start(settings).drain()
    # The rows of a link within the directory are a file's of its own.
    assert ingest.numbers() == [0, 0, 1, 1, 2, 2]
    assert published(outcomes) == {
        Fate.FINISHED: 2,
        Fate.REFUSED: len(announced),
        Fate.DEAD: len(UNINTELLIGIBLE),
    }
    assert sum(figures(each)["files"].get("refused", 0) for each in outcomes) == len(announced)
    assert status.figures(settings)["last_batches"]["refused_files"] == len(announced)
    letters = ingest.wings.scan(dead).read_all().to_pylist()
    assert len(letters) == len(announced) + len(UNINTELLIGIBLE)
    for what, name in announced.items():
        uri = name.removeprefix("file://").replace("%2E", ".")
        (error,) = {letter["error"] for letter in letters if letter["uri"] == uri}
        assert "may read" in error or "'..'" in error, what
        # Neither whether it is there, nor what is in it.
        assert not any(word in error for word in ("No such file", "root:", "100")), what
    assert ingest.queue.remaining == 0


def test_a_watched_directory_is_the_place_of_its_source(ingest: Ingest, topic: str) -> None:
    watched, elsewhere = ingest.path / "watched", ingest.path / "elsewhere"
    watched.mkdir()
    elsewhere.mkdir()
    write_jsonl(watched / "a.jsonl", range(3))
    linked(watched / "link.jsonl", write_jsonl(elsewhere / "secret.jsonl", range(10, 13)))
    os.mkfifo(watched / "pipe.jsonl")  # Not waited for, though it has no writer.
    found: Any = ingest.source(limits={"max_delivery_attempts": 1}).model_dump(
        mode="json", exclude_none=True
    )
    found["queue"] = {"kind": "directory", "path": str(watched), "wait_seconds": 0}
    outcomes = ingest.start(SourceSettings.parse(found, "test")).drain()
    assert published(outcomes) == {Fate.FINISHED: 1, Fate.REFUSED: 1, Fate.DEAD: 1}
    assert ingest.numbers() == [0, 1, 2]


def test_a_bucket_or_a_folder_of_it_is_all_that_is_read_in_s3(
    ingest: Ingest, topic: str, aws: "Aws"
) -> None:
    s3 = aws.client("s3")
    for bucket in (topic, f"{topic}-other"):
        s3.create_bucket(Bucket=bucket)
        for index, key in enumerate(("in/a.jsonl", "in-secret/a.jsonl", "a.jsonl")):
            body = write_jsonl(ingest.path / "x", range(index * 2, index * 2 + 2)).read_bytes()
            s3.put_object(Bucket=bucket, Key=key, Body=body)
    keys = ("in/a.jsonl", "in-secret/a.jsonl", "a.jsonl", "in/../a.jsonl", "in", "in/%2e%2e/a")
    ingest.queue.send(f"s3://{topic}/{key}" for key in keys)
    ingest.queue.send([f"s3://{topic}-other/in/a.jsonl", f"s3://{topic}.in/a.jsonl", "/etc/passwd"])
    prefixes = [f"s3://{topic}/in/"]
    settings = ingest.source(
        files={"endpoint": aws.endpoint, "allowed_prefixes": prefixes},
        limits={"max_delivery_attempts": 1},
    )
    outcomes = ingest.start(settings).drain()
    assert ingest.numbers() == [0, 1]
    # `..` in a key is no folder above for S3, but could be for what asks it.
    assert published(outcomes) == {Fate.FINISHED: 1, Fate.REFUSED: 7, Fate.DEAD: 1}
