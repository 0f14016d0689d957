"""What S3 refuses with: whether a file is to blame, who asks, or the store."""

import errno
import os
import threading
import urllib.request
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from wings_core.errors import InvalidArgument, Unauthenticated, Unavailable
from wings_core.queue.journal import ClaimedFile
from wings_spark.ingest.fetch import fetched_file
from wings_spark.ingest.files import FileError, read_errors
from wings_spark.ingest.metrics import RunMetrics
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


# Figures of a run for Prometheus. #################################################################


def test_figures_of_batches_are_served_and_added_up() -> None:
    metrics = RunMetrics("orders")
    for _ in range(2):
        metrics.add(
            {"files": {"finished": 2, "dead": 1}, "rows": 30, "bytes": 400, "rescued_rows": 5}
        )
    metrics.restarted()
    metrics.note(SimpleNamespace(sources=[SimpleNamespace(latestOffset='{"pending": 7}')]))
    for offset in ("null", "", None):  # Before the first report.
        metrics.note(SimpleNamespace(sources=[SimpleNamespace(latestOffset=offset)]))
    metrics.note(None)
    with metrics.served("127.0.0.1:0") as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(InvalidArgument, match="in use"), metrics.served(f"127.0.0.1:{port}"):
            pass
    assert 'wings_ingest_files_total{outcome="dead",source="orders"} 2.0' in text
    assert 'wings_ingest_rows_total{source="orders"} 60.0' in text
    assert 'wings_ingest_rescued_rows_total{source="orders"} 10.0' in text
    assert 'wings_ingest_restarts_total{source="orders"} 1.0' in text
    assert 'wings_ingest_pending_messages{source="orders"} 7.0' in text
