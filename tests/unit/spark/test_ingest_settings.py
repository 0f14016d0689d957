"""What a source's TOML may say, and what is said of one that says something else."""

from pathlib import Path
from typing import Any

import pytest

from wings_core.errors import InvalidArgument
from wings_core.queue.notifications import DedupKey, MessageKind
from wings_spark.ingest.files import Patterns
from wings_spark.ingest.session import with_attempts
from wings_spark.ingest.settings import SourceSettings

WHOLE = """
name = "orders"
checkpoint = "state/orders"

[queue]
kind = "sqs"
url = "https://sqs.eu-central-1.amazonaws.com/1/orders"
region = "eu-central-1"
visibility_seconds = 120

[target]
endpoint = "grpc://wings:7777"
topic = "orders"

[files]
allowed_prefixes = ["s3://orders/2026", "incoming/../files"]
format = "jsonl"
dedup_key = "uri+version"
rescued_column = "rescued"
lineage = { file = "source_file", offset = "source_row" }

[limits]
files_per_trigger = 200
rows_per_file = 1000000

[dead_letters]
topic = "orders-dead"
"""

LEAST: dict[str, Any] = {
    "name": "orders",
    "checkpoint": "state",
    "queue": {"kind": "sqlite", "path": "queue"},
    "target": {"endpoint": "grpc://wings:7777", "topic": "orders"},
}


def test_a_source_is_read_from_toml_and_its_paths_begin_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(WHOLE)
    settings = SourceSettings.load(tmp_path / "orders.toml")
    assert settings.checkpoint == tmp_path / "state" / "orders"
    assert settings.queue.message_kind is MessageKind.S3_EVENTS
    assert settings.files.allowed_prefixes == ("s3://orders/2026", str(tmp_path / "files"))
    assert settings.dedup_key is DedupKey.URI_AND_VERSION
    assert settings.files.lineage.columns == ("source_file", "source_row")
    assert settings.coordinator().files_max == 200
    again = SourceSettings.model_validate_json(settings.model_dump_json())
    assert again == settings


def test_what_is_left_out_has_defaults(tmp_path: Path) -> None:
    settings = SourceSettings.parse(LEAST, "test").at(tmp_path)
    assert settings.queue.path == tmp_path / "queue"
    assert settings.queue.message_kind is MessageKind.URIS
    assert settings.dedup_key is DedupKey.URI
    assert settings.limits.max_delivery_attempts == 5
    watched = LEAST | {"queue": {"kind": "directory", "path": "/files"}}
    settings = SourceSettings.parse(watched, "test").at(tmp_path)
    assert settings.queue.path == Path("/files")
    assert settings.dedup_key is DedupKey.URI_AND_VERSION


BAD_SETTINGS = [
    ({"name": "Orders"}, "'name'"),
    ({"name": None}, "'name'"),
    ({"colour": "red"}, "unknown key 'colour'"),
    ({"queue": {"kind": "kafka"}}, "'queue.kind'"),
    ({"queue": {"kind": "sqs"}}, "needs the key 'url'"),
    ({"queue": {"kind": "sqlite"}}, "needs the key 'path'"),
    ({"queue": {"kind": "share", "topic": "t"}}, "needs the key 'group'"),
    ({"queue": {"kind": "sqlite", "path": "q", "url": "x"}}, "no key 'url'"),
    ({"queue": {"kind": "directory", "path": "d", "messages": "payloads"}}, "are 'uris'"),
    ({"queue": {"kind": "sqlite", "path": "q", "visibility_seconds": 0}}, "at least 1"),
    ({"target": {"topic": "orders"}}, "'target.endpoint' is required"),
    ({"files": {"format": "xml"}}, "'files.format'"),
    ({"files": {"dedup_key": "etag"}}, "'files.dedup_key'"),
    ({"files": {"lineage": {"file": "f", "offset": "f"}}}, "named twice"),
    ({"files": {"rescued_column": "f", "lineage": {"file": "f"}}}, "named twice"),
    ({"queue": {"kind": "sqs", "url": "u"}}, "needs 'files.allowed_prefixes'"),
    ({"queue": {"kind": "share", "topic": "t", "group": "g"}}, "needs 'files.allowed_prefixes'"),
    ({"files": {"allowed_prefixes": ["http://10.0.0.1"]}}, "'http://10.0.0.1' is no place"),
    ({"files": {"allowed_prefixes": ["s3://"]}}, "is no place"),
    ({"files": {"allowed_prefixes": ["s3://b/a/../c"]}}, "is no place"),
    ({"limits": {"files_per_trigger": 0}}, "'limits.files_per_trigger'"),
    ({"limits": {"files_per_trigger": 1_001}}, "at most 1000"),
    ({"limits": {"rows": 1}}, "unknown key 'limits.rows'"),
]


def test_what_cannot_be_is_named(subtests: pytest.Subtests) -> None:
    for changes, problem in BAD_SETTINGS:
        with subtests.test(changes=repr(changes)[:80]):
            with pytest.raises(InvalidArgument) as raised:
                SourceSettings.parse(LEAST | changes, "orders.toml")
            assert problem in raised.value.message
            assert raised.value.message.startswith("orders.toml: ")


def test_a_file_that_is_none_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        SourceSettings.load(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(InvalidArgument, match="is not TOML"):
        SourceSettings.load(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("master", "found"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_on_this_machine_tasks_are_tried_again_as_on_a_cluster(master: str, found: str) -> None:
    assert with_attempts(master) == found


# Patterns of files, and columns of their paths. ###################################################

PLACES = ("s3://b/in", "s3://b/in/deep", "/data")


@pytest.mark.parametrize(
    ("pattern", "uri", "matches"),
    [
        ("*.csv", "s3://b/in/x/a.csv", True),
        ("*.csv", "s3://b/in/x/a.csv.gz", False),
        ("x/*.csv", "s3://b/in/x/a.csv", True),
        ("x/*.csv", "s3://b/in/y/x/a.csv", False),
        ("**/x/*.csv", "s3://b/in/y/x/a.csv", True),
        ("**/x/*.csv", "s3://b/in/x/a.csv", True),
        ("a?.[x]", "/data/ab.[x]", True),
        ("a/**", "s3://b/in/deep/a/b/c", True),
        ("deep/a/**", "s3://b/in/deep/a/b/c", False),
    ],
)
def test_patterns_match_names_or_paths_below_the_nearest_place(
    pattern: str, uri: str, matches: bool
) -> None:
    assert Patterns([pattern], (), PLACES).takes(uri) is matches
    assert Patterns((), [pattern], PLACES).takes(uri) is not matches


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"encoding": "klingon"}, "'klingon' is no encoding"),
        ({"quote": ","}, "'quote' is the delimiter"),
        ({"quote": "«"}, "must be ASCII"),
        ({"partition_columns": ["a"], "rescued_column": "a"}, "'a' is named twice"),
        ({"include": [""]}, "include"),
    ],
)
def test_settings_that_cannot_be_are_named(files: dict[str, object], message: str) -> None:
    found = {
        "name": "a",
        "checkpoint": "c",
        "queue": {"kind": "sqlite", "path": "q"},
        "target": {"endpoint": "grpc://h:1", "topic": "t"},
        "files": files,
    }
    with pytest.raises(InvalidArgument, match=message):
        SourceSettings.parse(found, "test")
