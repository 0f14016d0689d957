"""Buckets that are listed, their notifications' set-up, and what happens to files that are read."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_calls import Calls
from fix_ingest import Ingest, MakeSource, Start, write_jsonl

from wings_core.errors import InvalidArgument, Unavailable
from wings_core.queue.sqlite import SqliteQueue
from wings_core.times import format_timestamp, parse_timestamp
from wings_spark.ingest import status, stores
from wings_spark.ingest.run import check
from wings_spark.ingest.settings import SourceSettings
from wings_spark.ingest.setup import Setup, make

if TYPE_CHECKING:
    from fix_aws import Aws
    from fix_ingest import Ingest, Pipeline


def rows(*found: int) -> bytes:
    return b"".join(json.dumps({"n": n}).encode() + b"\n" for n in found)


def source_of(source: MakeSource, queue: dict[str, Any], **changes: Any) -> SourceSettings:
    """Return a source of another kind of queue than the fixture's."""
    found = source(**changes).model_dump(mode="json", exclude_none=True)
    found["queue"] = {"wait_seconds": 0, **queue}
    return SourceSettings.parse(found, "test")


def listed(source: MakeSource, aws: "Aws", bucket: str, **changes: Any) -> SourceSettings:
    """Return a source that lists a folder of a bucket."""
    changes["files"] = {"endpoint": aws.endpoint, **changes.get("files", {})}
    return source_of(source, {"kind": "s3-listing", "url": f"s3://{bucket}/in"}, **changes)


def list_again(pipeline: "Pipeline") -> None:
    """Let the next listing begin at once."""
    vars(pipeline.queue)["_listed_at"] = None


def test_objects_of_a_bucket_are_listed_and_read_once_whoever_else_announces_them(
    ingest: Ingest, topic: str, aws: "Aws"
) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=topic)
    for index, key in enumerate(("in/a.jsonl", "in/deep/ü b.jsonl", "in2/c.jsonl")):
        s3.put_object(Bucket=topic, Key=key, Body=rows(index))
    settings = listed(ingest.source, aws, topic, files={"dedup_key": "uri+version"})
    pipeline = ingest.start(settings)
    pipeline.drain()
    assert ingest.numbers() == [0, 1]
    tag = s3.put_object(Bucket=topic, Key="in/a.jsonl", Body=rows(10))["ETag"].strip('"')
    s3.put_object(Bucket=topic, Key="in/d.jsonl", Body=rows(11))
    s3.delete_object(Bucket=topic, Key="in/deep/ü b.jsonl")
    pipeline.drain()
    assert ingest.numbers() == [0, 1], "a listing begins at most every minute"
    list_again(pipeline)
    pipeline.drain()
    assert ingest.numbers() == [0, 1, 10, 11]
    # A pipeline that has lost its checkpoint lists all objects again.
    other = ingest.start(settings.model_copy(update={"checkpoint": ingest.path / "other"}))
    other.drain()
    assert other.queue.pending() == 0
    # A notification of the same object is of the same file.
    url = aws.create_queue(topic)
    record = {"bucket": {"name": topic}, "object": {"key": "in/a.jsonl", "eTag": tag}}
    aws.client("sqs").send_message(
        QueueUrl=url, MessageBody=json.dumps({"Records": [{"s3": record}]})
    )
    found = settings.model_dump(mode="json", exclude_none=True)
    found["queue"] = {"kind": "sqs", "url": url, "endpoint": aws.endpoint, "wait_seconds": 0}
    found["files"]["allowed_prefixes"] = [f"s3://{topic}/in"]
    notified = ingest.start(
        SourceSettings.parse(found | {"checkpoint": str(ingest.path / "sqs")}, "test")
    )
    notified.drain()
    assert notified.queue.pending() == 0
    assert ingest.numbers() == [0, 1, 10, 11]


def test_files_are_read_while_a_large_bucket_is_still_listed(
    ingest: Ingest, topic: str, aws: "Aws", monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=topic)
    for n in range(8):
        s3.put_object(Bucket=topic, Key=f"in/{n}.jsonl", Body=rows(n))
    monkeypatch.setattr(stores, "PAGE_OBJECTS", 3)
    monkeypatch.setattr(stores, "PAGES_MAX", 1)
    pipeline = ingest.start(listed(ingest.source, aws, topic))
    counts: list[int] = []
    for _ in range(4):
        pipeline.step()
        counts.append(len(ingest.numbers()))
    assert counts == [3, 6, 8, 8]
    s3.delete_object(Bucket=topic, Key="in/4.jsonl")
    list_again(pipeline)
    pipeline.drain()
    assert isinstance(pipeline.queue, SqliteQueue)
    assert len(pipeline.queue.keys()) == 7


def test_a_bucket_that_is_not_there_is_said(
    source: MakeSource, topic: str, aws: "Aws", start: Start
) -> None:
    with pytest.raises(InvalidArgument, match=f"{topic}-not"):
        start(listed(source, aws, f"{topic}-not")).claim()


def test_a_set_up_that_is_made_notifies_the_source_and_leaves_others(
    ingest: Ingest, topic: str, aws: "Aws"
) -> None:
    s3, sqs = aws.client("s3"), aws.client("sqs")
    s3.create_bucket(Bucket=topic)
    other = aws.create_queue(f"{topic}-other")
    url = other.removesuffix("-other")
    arn = f"arn:aws:sqs:us-east-1:{url.split('/')[-2]}:{topic}-other"
    theirs = {"Id": "theirs", "QueueArn": arn, "Events": ["s3:ObjectRemoved:*"]}
    s3.put_bucket_notification_configuration(
        Bucket=topic, NotificationConfiguration={"QueueConfigurations": [theirs]}
    )
    settings = source_of(
        ingest.source,
        {"kind": "sqs", "url": url, "endpoint": aws.endpoint},
        files={"endpoint": aws.endpoint, "allowed_prefixes": [f"s3://{topic}/in"]},
    )
    setup = Setup.of(settings)
    assert [command.split(" --")[0] for command in setup.commands()] == [
        "aws sqs create-queue",
        "aws sqs set-queue-attributes",
        "aws s3api put-bucket-notification-configuration",
    ]
    for _ in range(2):
        make(setup, settings)
    found = s3.get_bucket_notification_configuration(Bucket=topic)["QueueConfigurations"]
    assert sorted(each["Id"] for each in found) == ["theirs", f"wings-{settings.name}-0"]
    policy = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])
    assert len(json.loads(policy["Attributes"]["Policy"])["Statement"]) == 1
    s3.put_object(Bucket=topic, Key="in/a b.jsonl", Body=rows(1, 2))
    s3.put_object(Bucket=topic, Key="out/b.jsonl", Body=rows(3))
    ingest.start(settings).drain()
    assert ingest.numbers() == [1, 2]


def test_only_queues_of_notifications_need_a_set_up(source: MakeSource) -> None:
    with pytest.raises(InvalidArgument, match="needs no set-up"):
        Setup.of(source())


def test_files_are_archived_once_they_are_published_and_not_before(
    ingest: Ingest, topic: str, calls: Calls
) -> None:
    place = ingest.path / "in" / "deep"
    place.mkdir(parents=True)
    good, bad, changed = (place / f"{name}.jsonl" for name in ("good", "bad", "changed"))
    write_jsonl(good, range(2))
    write_jsonl(changed, range(2, 4))
    bad.write_text('{"n": "x"}\n')
    ingest.queue.send([str(good), str(bad), str(changed)])
    files = {"archive": "done", "allowed_prefixes": ["in"]}
    settings = ingest.source(files=files, limits={"max_delivery_attempts": 1})
    pipeline = ingest.start(settings)
    claim = pipeline.claim()
    assert claim is not None
    results = pipeline.read(claim)
    assert good.exists()

    def end(*_: object, **__: object) -> None:
        raise Unavailable("the process ended")

    calls.after(pipeline.connections.client, "publish", end)
    with pytest.raises(Unavailable):
        pipeline.committer.commit(claim, results)
    assert good.exists()
    write_jsonl(changed, range(4, 9))
    # The next run finds it published, has read nothing itself, and archives what was read.
    again = ingest.start(settings)
    again.drain()
    assert not good.exists()
    assert (ingest.path / "done" / "deep" / "good.jsonl").read_text() == '{"n": 0}\n{"n": 1}\n'
    assert bad.exists()
    assert changed.exists(), "another version of it was read"
    assert ingest.numbers() == [0, 1, 2, 3]


def test_objects_are_archived_or_deleted_in_their_bucket(
    ingest: Ingest, topic: str, aws: "Aws"
) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=topic)
    s3.put_object(Bucket=topic, Key="in/x/a.jsonl", Body=rows(1))
    archived = listed(ingest.source, aws, topic, files={"archive": f"s3://{topic}/done"})
    check(archived)
    pipeline = ingest.start(archived)
    pipeline.drain()
    found = s3.list_objects_v2(Bucket=topic)["Contents"]
    assert [each["Key"] for each in found] == ["done/x/a.jsonl"]
    s3.put_object(Bucket=topic, Key="in/b.jsonl", Body=rows(2))
    ingest.start(listed(ingest.source, aws, topic, files={"delete": True})).drain()
    found = s3.list_objects_v2(Bucket=topic)["Contents"]
    assert [each["Key"] for each in found] == ["done/x/a.jsonl"]
    assert ingest.numbers() == [1, 2]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"archive": "in/done", "allowed_prefixes": ["in"]}, "which the source reads"),
        ({"archive": "s3://b/done", "allowed_prefixes": ["in"]}, "in the bucket s3://b"),
        ({"archive": "done", "allowed_prefixes": ["s3://b/in"]}, "on this machine"),
    ],
)
def test_an_archive_has_to_be_beside_what_is_read(
    source: MakeSource, topic: str, files: dict[str, Any], problem: str
) -> None:
    assert topic
    with pytest.raises(InvalidArgument, match=problem):
        check(source(files=files))


def test_history_has_a_row_for_each_file_of_each_batch(ingest: Ingest, topic: str) -> None:
    good, bad = write_jsonl(ingest.path / "good.jsonl", range(3)), ingest.path / "bad.jsonl"
    bad.write_text('{"n": "x"}\n')
    ingest.queue.send([str(good), str(bad)])
    limits = {"max_delivery_attempts": 1, "rows_per_file": 2}
    settings = ingest.source(history={"topic": f"{topic}-history"}, limits=limits)
    check(settings)
    ingest.start(settings).drain()
    found = status.history(settings, 10)
    assert [(Path(row["uri"]).name, row["outcome"], row["first_row"]) for row in found] == [
        ("good.jsonl", "partial", 0),
        ("bad.jsonl", "dead", 0),
        ("good.jsonl", "finished", 2),
    ]
    assert [row["rows"] for row in found] == [2, 0, 1]
    assert ":1" in found[1]["error"]
    assert all(row["began_at"] <= row["ended_at"] for row in found)
    assert [format_timestamp(parse_timestamp(row["ended_at"])) for row in found] == [
        row["ended_at"] for row in found
    ]
    assert found[0]["version"] == f"{good.stat().st_size}-{good.stat().st_mtime_ns}"
    without = settings.model_copy(update={"history": ingest.source().history})
    assert [row["rows"] for row in status.history(without, 2)] == [0, 1]
    assert ingest.wings.topic(f"{topic}-history").uuid
