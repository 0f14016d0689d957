"""Object stores to test with: a directory, and a bucket of a local S3 server."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from wings_core.storage.objects import ObjectStore, RetryBounds, open_objects
from wings_server import testing_s3

QUICK = RetryBounds(attempts_max=12, seconds_max=20.0, attempt_seconds_max=5.0, pause_seconds=0.01)
"""Little patience, as nothing here is far away."""

_numbers = count()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of an S3 server, one for all tests of a process."""
    with testing_s3.running_s3() as endpoint:
        yield endpoint


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of its own in the S3 server, which this process finds by its environment."""
    for name, value in testing_s3.environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    testing_s3.create_bucket(s3_endpoint, "wings-test")
    return f"s3://wings-test/place-{next(_numbers)}"


@pytest.fixture(params=["directory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty object store, of each kind."""
    url = str(tmp_path / "objects")
    if request.param == "s3":
        url = request.getfixturevalue("s3_url")
    return open_objects(url, QUICK)
