"""Large files are read in sections by several tasks, and are messages once, in order."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from fix_calls import Calls
from fix_files import ReadSizes
from fix_ingest import Ingest, MakeSource, write_jsonl

from wings_client import Client
from wings_core.errors import StageNotFound
from wings_core.queue.journal import Claim, Fate, FileResult
from wings_core.queue.sqlite import SqliteQueue
from wings_spark.ingest import fetch
from wings_spark.ingest.fetch import name_of
from wings_spark.ingest.plan import planned, section_count

if TYPE_CHECKING:
    from fix_aws import Aws

arrow: Any = pa
ROWS = 2_000


def tell(directory: Path, *files: Path, size: int | None = None) -> None:
    """Tell the source's queue of files and their sizes."""
    queue = SqliteQueue(directory / "queue.sqlite")
    queue.send(
        json.dumps({"uri": str(file), "size": size or file.stat().st_size}) for file in files
    )
    queue.close()


def in_order(client: Client, topic: str, column: str = "n") -> list[Any]:
    return client.scan(topic).read_all()[column].to_pylist()


def write(path: Path) -> None:
    table = arrow.table({"n": range(ROWS)})
    if path.suffix == ".jsonl":
        write_jsonl(path, range(ROWS))
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=150)
    else:
        with arrow.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=150)


NAMES = ["a.jsonl", "a.csv", "a.parquet", "a.arrow"]


@pytest.mark.parametrize("name", NAMES)
def test_a_large_file_is_read_by_several_tasks_and_is_there_once_in_order(
    ingest: Ingest, name: str
) -> None:
    columns = {"n": "int64", "row": "int64", "rescued": "string"}
    ingest.create(columns)
    path = ingest.path / name
    write(path)
    tell(ingest.path, path, ingest.path / name)
    files = {"lineage": {"offset": "row"}, "rescued_column": "rescued"}
    pipeline = ingest.pipeline(files=files, limits={"split_bytes": path.stat().st_size // 4})
    claim = pipeline.claim()
    assert claim is not None
    works = planned(claim, "token", 2, pipeline.settings)
    assert [len(work.sections) > 1 for work in works] == [True, True]
    results = pipeline.read(claim)
    assert sum(result.rows > 0 for result in results) >= 4
    outcome = pipeline.committer.commit(claim, results)
    assert outcome.rows == ROWS
    assert in_order(ingest.wings, ingest.topic) == list(range(ROWS))
    assert in_order(ingest.wings, ingest.topic, "row") == list(range(ROWS))
    (shard,) = ingest.wings.list_shards(pipeline.settings.name)
    assert (shard.position, shard.state) == (ROWS, "finished")


def test_a_quote_that_comes_late_has_the_file_read_by_one_task(
    ingest: Ingest, read_sizes: ReadSizes
) -> None:
    read_sizes(section_sample=100)
    ingest.create({"n": "int64", "s": "string"})
    path = ingest.path / "a.csv"
    values = ["x\n7,y" if n > ROWS // 2 else "x" for n in range(ROWS)]
    rows = [f'{n},"{value}"' if "\n" in value else f"{n},x" for n, value in enumerate(values)]
    path.write_text("n,s\n" + "\n".join(rows))
    tell(ingest.path, path)
    pipeline = ingest.pipeline(limits={"split_bytes": path.stat().st_size // 5})
    outcome = pipeline.step()
    assert outcome is not None
    assert [(file.fate, file.rows) for file in outcome.files] == [(Fate.PARTIAL, 0)]
    assert in_order(ingest.wings, ingest.topic) == []
    pipeline.coordinator.finish_claims()
    claim = pipeline.claim()
    assert claim is not None
    assert claim.files[0].is_whole
    pipeline.committer.commit(claim, pipeline.read(claim))
    assert in_order(ingest.wings, ingest.topic) == list(range(ROWS))
    assert in_order(ingest.wings, ingest.topic, "s") == values


def test_a_file_of_which_a_section_fails_gives_no_row(ingest: Ingest) -> None:
    ingest.create({"n": "int64"})
    path = write_jsonl(ingest.path / "a.jsonl", range(ROWS))
    path.write_text(path.read_text() + '{"n": "x"}\n')
    other = write_jsonl(ingest.path / "b.jsonl", range(3))
    tell(ingest.path, path, other)
    limits = {"split_bytes": path.stat().st_size // 4, "max_delivery_attempts": 1}
    pipeline = ingest.pipeline(limits=limits)
    outcome = pipeline.step()
    assert outcome is not None
    assert [file.fate for file in outcome.files] == [Fate.DEAD, Fate.FINISHED]
    assert f":{ROWS + 1}" in (outcome.files[0].error or "")
    assert in_order(ingest.wings, ingest.topic) == [0, 1, 2]


def test_a_file_that_changes_between_its_sections_is_tried_again(ingest: Ingest) -> None:
    ingest.create({"n": "int64"})
    path = write_jsonl(ingest.path / "a.jsonl", range(ROWS))
    tell(ingest.path, path)
    pipeline = ingest.pipeline(limits={"split_bytes": path.stat().st_size // 3})
    claim = pipeline.claim()
    assert claim is not None
    early = pipeline.read(claim)
    write_jsonl(path, range(ROWS, 2 * ROWS))
    late = pipeline.read(claim)
    mixed = [*early[:1], *(each for each in late if each.section != early[0].section)]
    outcome = pipeline.committer.commit(claim, mixed)
    assert [file.fate for file in outcome.files] == [Fate.FAILED]
    assert "changed" in (outcome.files[0].error or "")
    assert in_order(ingest.wings, ingest.topic) == []


def test_a_claim_that_is_read_again_in_other_sections_is_published_once(ingest: Ingest) -> None:
    ingest.create({"n": "int64"})
    path = write_jsonl(ingest.path / "a.jsonl", range(ROWS))
    tell(ingest.path, path)
    settings = ingest.source(limits={"split_bytes": path.stat().st_size // 6})
    first = ingest.start(settings)
    claim = first.claim()
    assert claim is not None
    early = first.read(claim)
    again = ingest.pipeline(limits={"split_bytes": path.stat().st_size // 2})
    found = again.claim()
    assert found == claim
    again.committer.commit(claim, again.read(claim))
    with pytest.raises(StageNotFound):
        # What was staged first is gone, and would not be published twice if it were not.
        ingest.wings.publish("another", 1, [stage for each in early for stage in each.stages])
    assert in_order(ingest.wings, ingest.topic) == list(range(ROWS))


def test_a_size_that_is_not_true_does_no_harm(ingest: Ingest) -> None:
    ingest.create({"n": "int64"})
    path = write_jsonl(ingest.path / "a.jsonl", range(10))
    tell(ingest.path, path, size=1_000_000)
    ingest.drain(limits={"split_bytes": 100_000})
    assert in_order(ingest.wings, ingest.topic) == list(range(10))


def files_in(aws: "Aws", bucket: str) -> dict[str, Any]:
    return {"endpoint": aws.endpoint, "allowed_prefixes": [f"s3://{bucket}"]}


@pytest.mark.parametrize("name", NAMES)
def test_objects_are_fetched_by_the_bytes_that_a_section_needs(
    ingest: Ingest, aws: "Aws", name: str
) -> None:
    ingest.create({"n": "int64"})
    write(ingest.path / name)
    data = (ingest.path / name).read_bytes()
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=ingest.topic)
    s3.put_object(Bucket=ingest.topic, Key=f"large/{name}", Body=data)
    queue = SqliteQueue(ingest.path / "queue.sqlite")
    queue.send([json.dumps({"uri": f"s3://{ingest.topic}/large/{name}", "size": len(data)})])
    limits = {"split_bytes": len(data) // 4}
    pipeline = ingest.pipeline(files=files_in(aws, ingest.topic), limits=limits)
    claim = pipeline.claim()
    assert claim is not None
    results = pipeline.read(claim)
    assert len(results) == (1 if name.endswith("arrow") else 5)
    pipeline.committer.commit(claim, results)
    assert in_order(ingest.wings, ingest.topic) == list(range(ROWS))
    queue.close()


def test_an_object_that_one_section_has_is_fetched_once(
    ingest: Ingest, aws: "Aws", calls: Calls, read_sizes: ReadSizes
) -> None:
    read_sizes(section_sample=100)
    ingest.create({"n": "int64", "s": "string"})
    data = ("n,s\n" + "".join(f'{n},"x"\n' for n in range(ROWS))).encode()
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=ingest.topic)
    key = "orders.123e4567-e89b-12d3-a456-426614174000.csv"
    s3.put_object(Bucket=ingest.topic, Key=key, Body=data)
    queue = SqliteQueue(ingest.path / "queue.sqlite")
    queue.send([json.dumps({"uri": f"s3://{ingest.topic}/{key}", "size": len(data)})])
    fetched = calls.heard(fetch.FetchedObject, "fetch")
    pipeline = ingest.pipeline(
        files=files_in(aws, ingest.topic), limits={"split_bytes": len(data) // 8}
    )
    pipeline.drain()
    assert in_order(ingest.wings, ingest.topic) == list(range(ROWS))
    assert len(data) <= sum(end - first for _, _, first, end in fetched) < 2 * len(data)
    queue.close()


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("s3://b/orders.123e4567-e89b-12d3-a456-426614174000.jsonl", "file.jsonl"),
        ("s3://b/2026.11.22.csv.gz", "file.csv.gz"),
        ("s3://b/a.gz.123e4567-e89b-12d3-a456-426614174000", "file"),
        ("s3://b/é.ü.csv", "file.csv"),
        ("s3://b/a.csv/", "file.csv"),
    ],
)
def test_what_tells_the_format_of_a_file_is_kept(uri: str, name: str) -> None:
    assert name_of(uri) == name


@pytest.mark.parametrize(
    ("uri", "changes", "count"),
    [
        ("/a.jsonl", {}, 4),
        ("/a.jsonl.gz", {}, 1),
        ("/a.json", {}, 1),
        ("/a", {}, 1),
        ("/a", {"files": {"format": "csv"}}, 4),
        ("/a.jsonl", {"limits": {"rows_per_file": 10}}, 1),
        ("s3://b/a.parquet", {"files": {"lineage": {"offset": "row"}}}, 4),
        ("s3://b/a.csv", {"files": {"lineage": {"offset": "row"}}}, 1),
        ("s3://b/a.arrow", {}, 1),
    ],
)
def test_files_are_split_where_their_format_lets_them_be(
    source: MakeSource, uri: str, changes: dict[str, Any], count: int
) -> None:
    claim = Claim.model_validate({"number": 1, "files": [{"shard": "a", "uri": uri, "size": 400}],
                                  "messages": []})  # fmt: skip
    (file,) = claim.files
    settings = source(**changes)
    assert section_count(file, settings, 100) == count
    assert section_count(file.model_copy(update={"position": 1}), settings, 100) == 1
    assert section_count(file.model_copy(update={"is_whole": True}), settings, 100) == 1
    assert section_count(file, settings, 400) == 1


def test_a_value_that_is_longer_than_a_section_has_the_file_read_by_one_task(
    ingest: Ingest, read_sizes: ReadSizes
) -> None:
    read_sizes(section_sample=100)
    ingest.create({"n": "int64", "s": "string"})
    path = ingest.path / "a.csv"
    lines = "\n".join(["no number,x"] * 400)
    path.write_text("n,s\n" + "".join(f"{n},x\n" for n in range(ROWS)) + f'{ROWS},"{lines}"\n')
    tell(ingest.path, path)
    pipeline = ingest.pipeline(limits={"split_bytes": len(lines) // 4, "max_delivery_attempts": 1})
    pipeline.drain()
    assert in_order(ingest.wings, ingest.topic) == list(range(ROWS + 1))


def test_results_without_a_section_are_a_failure(source: MakeSource) -> None:
    from wings_core.queue.journal import results_by_shard

    del source
    results = [FileResult("a", ("s",), 5, finished=True, section=0, sections=2)]
    assert "not all sections" in (results_by_shard(results)["a"].error or "")
