"""What messages tell of: notifications of S3 in all their forms, URIs, data, and what is none."""

import json
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wings_core.errors import InvalidArgument
from wings_core.queue.notifications import (
    DedupKey,
    FileNotification,
    MessageKind,
    file_of_shard,
    files_of,
    message_of,
    shard_of_file,
)


def record(key: str, **about: object) -> dict[str, Any]:
    return {
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": "b"}, "object": {"key": key, **about}},
    }


def s3(*records: object, dedup_key: DedupKey = DedupKey.URI) -> tuple[FileNotification, ...]:
    body = json.dumps({"Records": records})
    return files_of(body, "7", MessageKind.S3_EVENTS, dedup_key)


def uris(body: str, dedup_key: DedupKey = DedupKey.URI) -> tuple[FileNotification, ...]:
    return files_of(body, "7", MessageKind.URIS, dedup_key)


BAD_NAMES = [
    (r'{"uri": "/a\ud800"}', "not valid Unicode"),
    (r'{"uri": "/a", "version": "\udcff"}', "not valid Unicode"),
    (r'{"uri": "/a\u0000b"}', "no file's name has"),
    ("file:///a%00b", "no file's name has"),
    ("file://[a/b", "is not a URI"),
]


def test_a_name_that_no_file_has_is_a_problem_of_its_message(subtests: pytest.Subtests) -> None:
    for body, problem in BAD_NAMES:
        with subtests.test(body=repr(body)[:80]):
            (notification,) = uris(body)
            assert notification.shard == "message:7"
            assert problem in str(notification.problem)


def test_every_record_of_a_notification_counts() -> None:
    found = s3(record("a.jsonl", size=3), record("dir/b.jsonl", eTag="x"))
    assert found == (
        FileNotification("s3://b/a.jsonl", "s3://b/a.jsonl", None, 3),
        FileNotification("s3://b/dir/b.jsonl", "s3://b/dir/b.jsonl", "etag:x", None),
    )


KEYS = [
    ("a+b.jsonl", "a b.jsonl"),
    ("a%2Bb.jsonl", "a+b.jsonl"),
    ("Gr%C3%B6%C3%9Fe/%E6%97%A5.jsonl", "Größe/日.jsonl"),
    ("100%25.jsonl", "100%.jsonl"),
]


def test_keys_are_decoded_as_s3_encodes_them(subtests: pytest.Subtests) -> None:
    for encoded, key in KEYS:
        with subtests.test(encoded=repr(encoded)[:80]):
            assert s3(record(encoded))[0].uri == f"s3://b/{key}"


def test_keys_of_eventbridge_are_as_they_are() -> None:
    detail = {"bucket": {"name": "b"}, "object": {"key": "a+b c.jsonl", "version-id": "v"}}
    body = json.dumps({"detail-type": "Object Created", "detail": detail})
    (found,) = files_of(body, "7", MessageKind.S3_EVENTS, DedupKey.URI_AND_VERSION)
    assert (found.uri, found.version) == ("s3://b/a+b c.jsonl", "v")
    assert found.shard == "s3://b/a+b c.jsonl#v"


def test_notifications_by_way_of_sns_are_unwrapped() -> None:
    inner = json.dumps({"Records": [record("a")]})
    body = json.dumps({"Type": "Notification", "Message": inner})
    assert files_of(body, "7", MessageKind.S3_EVENTS, DedupKey.URI) == s3(record("a"))


NOTHING_TO_READ = [
    {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"},
    {"Records": []},
    {"Records": [{"eventName": "ObjectRemoved:Delete", "s3": record("a")["s3"]}]},
    {"detail-type": "Object Deleted", "detail": {}},
]


def test_what_tells_of_nothing_to_read_is_no_file(subtests: pytest.Subtests) -> None:
    for event in NOTHING_TO_READ:
        with subtests.test(event=repr(event)[:80]):
            assert files_of(json.dumps(event), "7", MessageKind.S3_EVENTS, DedupKey.URI) == ()


BAD_NOTIFICATIONS = [
    "",
    "not JSON",
    "[]",
    "{}",
    '{"Records": 7}',
    '{"Records": [7]}',
    '{"Records": [{"s3": {"bucket": {}, "object": {}}}]}',
    '{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": 7}}}]}',
    '{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "%FF"}}}]}',
    '{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "' + "x" * 3_000 + '"}}}]}',
    "[" * 100_000,
]


def test_a_notification_that_is_none_is_a_problem_of_its_message(subtests: pytest.Subtests) -> None:
    for body in BAD_NOTIFICATIONS:
        with subtests.test(body=repr(body)[:80]):
            (found,) = files_of(body, "7", MessageKind.S3_EVENTS, DedupKey.URI)
            assert found.shard == found.uri == "message:7"
            assert found.problem


def test_events_may_be_named_as_they_are_subscribed_to() -> None:
    created = {**record("a"), "eventName": "s3:ObjectCreated:Put"}
    removed = {**record("b"), "eventName": "s3:ObjectRemoved:Delete"}
    assert [found.uri for found in s3(created, removed)] == ["s3://b/a"]


def test_a_file_told_of_twice_in_one_message_is_one() -> None:
    assert len(s3(record("a"), record("a"))) == 1
    two = s3(record("a", eTag="1"), record("a", eTag="2"), dedup_key=DedupKey.URI_AND_VERSION)
    assert len(two) == 2


URIS = [
    ("s3://b/größe +.jsonl", "s3://b/größe +.jsonl"),
    (" /data/a.jsonl\n", "/data/a.jsonl"),
    ("file:///data/a%20b.jsonl", "/data/a b.jsonl"),
    ("file://localhost/data/a%23b%3Fc", "/data/a#b?c"),
    ("/data//a", "/data/a"),
    ("file:///data/./a/.//b/", "/data/a/b"),
    ("/data/../a", "/data/../a"),
    ("s3://b/a//./b", "s3://b/a//./b"),
    ('{"uri": "/data/a"}', "/data/a"),
]


def test_files_are_named_by_uri_or_path(subtests: pytest.Subtests) -> None:
    for body, uri in URIS:
        with subtests.test(body=repr(body)[:80]):
            assert uris(body) == (FileNotification(uri, uri),)


def test_a_version_makes_another_file_where_it_counts() -> None:
    body = json.dumps({"uri": "/a", "version": "1", "size": 5})
    assert uris(body) == (FileNotification("/a", "/a", "1", 5),)
    assert uris(body, DedupKey.URI_AND_VERSION) == (FileNotification("/a#1", "/a", "1", 5),)


BAD_URIS = ["", "a.jsonl", "ftp://x/y", "s3://b", "s3:///k",
     "file:///a#b.csv", "file:///a?c.csv", "file:///a.csv?", "file://host/a",
     '{"uri": 7}', '{"url": "/a"}',
     '{"uri": "/a", "size": -1}', '{"uri": "/a", "version": 1}', "{"]  # fmt: skip


def test_what_names_no_file_is_a_problem(subtests: pytest.Subtests) -> None:
    for body in BAD_URIS:
        with subtests.test(body=repr(body)[:80]):
            (found,) = uris(body)
            assert found.problem
            assert found.shard == "message:7"


def test_a_payload_is_the_data_itself() -> None:
    (found,) = files_of('{"n": 1}', "7", MessageKind.PAYLOADS, DedupKey.URI)
    assert (found.shard, found.payload, found.size) == ("message:7", '{"n": 1}', 8)


@given(
    key=st.text(min_size=1, max_size=50).filter(
        lambda key: key.encode("utf-8", "replace").decode() == key and "\0" not in key
    ),
    version=st.none() | st.sampled_from(["v1", "etag:abc"]),
    size=st.none() | st.integers(0, 10),
    dedup_key=st.sampled_from(DedupKey),
)
def test_a_message_that_is_made_for_a_file_tells_of_it(
    key: str, version: str | None, size: int | None, dedup_key: DedupKey
) -> None:
    uri = f"s3://b/{key}"
    body = message_of(uri, version, size, MessageKind.S3_EVENTS)
    (found,) = files_of(body, "7", MessageKind.S3_EVENTS, dedup_key)
    assert (found.uri, found.version, found.size) == (uri, version, size)
    is_of_version = dedup_key is DedupKey.URI_AND_VERSION
    assert file_of_shard(found.shard, dedup_key) == (uri, version if is_of_version else None)
    assert quote_plus(key) in body


NAMES = st.text(alphabet="a#%235/", min_size=1, max_size=6)


@given(one=NAMES, other=NAMES, versions=st.tuples(*[st.none() | NAMES] * 2))
def test_no_two_files_have_one_shard(
    one: str, other: str, versions: tuple[str | None, str | None]
) -> None:
    files = list(zip((f"s3://b/{one}", f"s3://b/{other}"), versions, strict=True))
    shards = [shard_of_file(*file, DedupKey.URI_AND_VERSION) for file in files]
    assert (shards[0] == shards[1]) == (files[0] == files[1])
    assert [file_of_shard(shard, DedupKey.URI_AND_VERSION) for shard in shards] == files


def test_a_message_says_which_death_it_has_read_again() -> None:
    for kind, uri in ((MessageKind.S3_EVENTS, "s3://b/k"), (MessageKind.URIS, "/a")):
        (found,) = files_of(message_of(uri, "v", None, kind, 77), "7", kind, DedupKey.URI)
        assert found == FileNotification(uri, uri, "v", retry_of=77)


def test_no_message_is_made_for_what_it_cannot_tell_of() -> None:
    with pytest.raises(InvalidArgument, match="not in S3"):
        message_of("/a", None, None, MessageKind.S3_EVENTS)
    with pytest.raises(InvalidArgument, match="data"):
        message_of("/a", None, None, MessageKind.PAYLOADS)
