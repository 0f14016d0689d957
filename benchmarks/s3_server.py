"""A bare S3 server over a directory, for benchmarks alone: `python -m benchmarks.s3_server DIR`.

It knows as much of the protocol as is measured (put if absent, ranges, lists, deletes), checks no
signature, and hands files to the network in the kernel: the S3 server of the tests reads a whole
object into memory for each range of it, which would be all that is measured.
"""

import os
import re
import sys
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 64 * 1024
    root: Path

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self._path()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as file:
                file.write(body)
        except FileExistsError:
            self._answer(412)
            return
        self._answer(200, {"ETag": '"1"'})

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if "list-type" in query:
            bucket = self.root / unquote(parts.path).strip("/")
            self._list(bucket, query.get("prefix", [""])[0])
            return
        try:
            file = self._path().open("rb")
        except FileNotFoundError:
            self._answer(404)
            return
        with file:
            found = os.fstat(file.fileno())
            start, end = 0, found.st_size
            wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
            headers = {"ETag": '"1"', "Last-Modified": self.date_time_string(found.st_mtime)}
            if wanted is not None:
                start, end = int(wanted[1]), min(end, int(wanted[2]) + 1)
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{found.st_size}"
            self._answer(200 if wanted is None else 206, headers, length=end - start)
            if self.command == "HEAD":
                return
            self.wfile.flush()
            while start < end:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, end - start)

    do_HEAD = do_GET  # noqa: N815 - as the library calls it

    def do_POST(self) -> None:
        """Delete many; nothing else is asked for by POST."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        deleted = ""
        for key in re.findall(r"<Key>([^<]+)</Key>", body):
            (self._path() / key).unlink(missing_ok=True)
            deleted += f"<Deleted><Key>{key}</Key></Deleted>"
        answer = f"<DeleteResult>{deleted}</DeleteResult>".encode()
        self._answer(200, {"Content-Type": "application/xml"}, length=len(answer))
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def _path(self) -> Path:
        return self.root / unquote(urlsplit(self.path).path).strip("/")

    def _list(self, bucket: Path, prefix: str) -> None:
        entries: list[str] = []
        for path in sorted(bucket.rglob("*")):
            key = path.relative_to(bucket).as_posix()
            if path.is_file() and key.startswith(prefix):
                found = path.stat()
                modified = datetime.fromtimestamp(found.st_mtime, UTC).strftime("%Y-%m-%dT%XZ")
                entries.append(
                    f"<Contents><Key>{key}</Key><LastModified>{modified}</LastModified>"
                    f"<ETag>1</ETag><Size>{found.st_size}</Size></Contents>"
                )
        body = f"<ListBucketResult>{''.join(entries)}</ListBucketResult>".encode()
        self._answer(200, {"Content-Type": "application/xml"}, length=len(body))
        self.wfile.write(body)

    def _answer(self, status: int, headers: dict[str, str] | None = None, length: int = 0) -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def main() -> None:
    """Serve on a free port, printed first."""
    _Handler.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
