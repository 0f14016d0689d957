"""Patterns of files, and columns of their paths."""

import pytest

from wings_core.errors import InvalidArgument
from wings_spark.ingest.files import Patterns
from wings_spark.ingest.settings import SourceSettings

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
