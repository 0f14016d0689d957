"""What S3 refuses with: whether a file is to blame, who asks, or the store."""

import errno
import os
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

from wings_core.errors import Unauthenticated, Unavailable
from wings_core.queue.journal import ClaimedFile
from wings_spark.ingest.fetch import fetched_file
from wings_spark.ingest.files import FileError, read_errors
from wings_spark.ingest.plan import FileSection
from wings_spark.ingest.settings import SourceSettings
from wings_spark.ingest.stores import store_errors


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Generator[str]:
    """The address of a store that refuses all with one status and code."""
    status, code = request.param
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>m</Message></Error>'.encode()

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - As it is called.
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("endpoint", "error"),
    [
        ((403, "InvalidAccessKeyId"), Unauthenticated),
        ((403, "SignatureDoesNotMatch"), Unauthenticated),
        ((400, "ExpiredToken"), Unauthenticated),
        ((403, "AccessDenied"), FileError),
        ((400, "InvalidRequest"), FileError),
        ((404, "NoSuchBucket"), FileError),
        ((503, "SlowDown"), Unavailable),
    ],
    indirect=["endpoint"],
)
def test_an_error_of_a_store_is_translated_by_its_code(
    endpoint: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wings_spark.ingest.stores.RETRY", {"max_retries": 0})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    settings = SourceSettings.parse(
        {
            "name": "a",
            "checkpoint": "checkpoint",
            "queue": {"kind": "sqlite", "path": "queue"},
            "target": {"endpoint": "grpc://127.0.0.1:1", "topic": "a"},
            "files": {"endpoint": endpoint, "allowed_prefixes": ["s3://bucket"]},
        },
        "test",
    )
    file = ClaimedFile(shard="a", uri="s3://bucket/a.jsonl")
    with (
        pytest.raises(error, match=r"s3://bucket/a\.jsonl"),
        fetched_file(FileSection(file=file, number=0), tmp_path, settings),
    ):
        pass


MACHINE_ERRORS = ("ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "EROFS", "EIO")


def test_an_error_of_the_workers_disk_is_no_error_of_a_file(subtests: pytest.Subtests) -> None:
    uri = "s3://bucket/a.jsonl"
    for name in (*MACHINE_ERRORS, "EACCES"):
        code = getattr(errno, name)
        error = Unavailable if name in MACHINE_ERRORS else FileError
        for translated in (store_errors(uri, None), read_errors(uri)):
            with (
                subtests.test(name),
                pytest.raises(error, match=os.strerror(code)),
                translated,
            ):
                raise OSError(code, os.strerror(code))


def test_what_cannot_be_read_of_a_file_is_its_error() -> None:
    for error in (OSError(errno.EIO, "a broken disk"), pa.ArrowInvalid("no magic bytes")):
        with pytest.raises(FileError, match=r"/a\.parquet"), read_errors("/a.parquet"):
            raise error
