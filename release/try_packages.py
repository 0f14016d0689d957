"""Install the built packages into clean environments, and use them as someone would.

    python release/try_packages.py dist [PYTHON...]

For each Python (default: those of 3.11, 3.12 and 3.13 on the path), the wheel with what a server
needs, and the sdist alone, are installed each into an environment of its own. A server is started,
a file pushed, fetched and queried, and the server stopped; the sdist's client is imported.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
STOP_SECONDS = 20.0


def main(directory: str, *pythons: str) -> None:
    """Try what a directory has; raises at the first thing that fails."""
    (wheel,) = Path(directory).absolute().glob("*.whl")
    (sdist,) = Path(directory).absolute().glob("*.tar.gz")
    found = [each for each in pythons or _on_path() if shutil.which(each)]
    if not found:
        raise SystemExit(f"none of Python {', '.join(VERSIONS)} is on the path")
    for python in found:
        for package in (f"{wheel}[server]", str(sdist)):
            with tempfile.TemporaryDirectory(prefix="wings-release-") as work:
                _try(python, package, Path(work))
                print(f"{python}: {Path(package).name} works", flush=True)


def _on_path() -> list[str]:
    """Return the Pythons of this product that run: a shim of a version manager may not."""
    found = [f"python{version}" for version in VERSIONS if shutil.which(f"python{version}")]
    runs = [subprocess.run([each, "-c", ""], capture_output=True, check=False) for each in found]
    return [each for each, run in zip(found, runs, strict=True) if run.returncode == 0]


def _try(python: str, package: str, work: Path) -> None:
    subprocess.run([python, "-m", "venv", work / "env"], check=True)
    binaries = work / "env" / "bin"
    subprocess.run(
        [binaries / "python", "-m", "pip", "install", "--quiet", package], check=True, cwd=work
    )
    subprocess.run([binaries / "python", "-c", "import wings_client"], check=True, cwd=work)
    if package.endswith("[server]"):
        _serve(binaries / "wings", work)


def _serve(wings: Path, work: Path) -> None:
    rows = [{"n": number, "s": f"row {number}"} for number in range(100)]
    file = work / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    serve = [wings, "serve", "--data-dir", work / "data", "--flight", "127.0.0.1:0"]
    serve += ["--http", "127.0.0.1:0"]
    with subprocess.Popen(serve, cwd=work, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = re.search(r"grpc\S*://[^\s,]+:\d+", server.stdout.readline())
            assert ready is not None, "the server says where it listens"

            def run(*arguments: object) -> str:
                command = [wings, *map(str, arguments), "--endpoint", ready[0]]
                return subprocess.run(
                    command, check=True, cwd=work, stdout=subprocess.PIPE, text=True
                ).stdout

            run("push", "rows", file, "--create")
            fetched = run("fetch", "rows", "--offset", "0", "--format", "json")
            assert json.loads(fetched) == rows, "the rows come back"
            found = run("sql", "select max(n) as last from rows", "--format", "json")
            assert json.loads(found) == [{"last": 99}], found
        finally:
            server.terminate()
            assert server.wait(STOP_SECONDS) == 0, "the server stops in order"


if __name__ == "__main__":
    main(*sys.argv[1:])
