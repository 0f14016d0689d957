"""A local S3 server (moto's) for tests and examples, in a process of its own.

`python -m wings_server.testing_s3` prints its port and runs until its standard input ends, so it
never outlives its parent process. It supports conditional puts, keeps everything in memory, and
checks no signature.
"""

import logging
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

ACCESS_KEY_ID = "wings-test"
SECRET_ACCESS_KEY = "wings-test-secret"


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which a process finds the server and its credentials."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
        "AWS_REGION": "us-east-1",
    }


@contextmanager
def running_s3() -> Generator[str]:
    """Run an S3 server and yield its address, `http://127.0.0.1:PORT`.

    Raises:
        RuntimeError: It did not start, as where moto is not installed.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "wings_server.testing_s3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for its clients, which still write to it.
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            if not port.isdigit():
                raise RuntimeError("the S3 server did not start: is moto[s3,server] installed?")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def create_bucket(endpoint: str, bucket: str) -> None:
    """Create a bucket; one that is there is no error."""
    import httpx

    answer = httpx.put(f"{endpoint}/{bucket}", headers={"Authorization": _AUTHORIZATION})
    assert answer.status_code in {200, 409}, answer.text


_AUTHORIZATION = (
    f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY_ID}/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
)


def _serve() -> None:
    from moto.server import ThreadedMotoServer  # pyright: ignore[reportMissingTypeStubs]

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    _serve()
