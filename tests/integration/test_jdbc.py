"""Arrow's driver of JDBC, in a small program of Java.

It needs a JDK, and the driver's jar, `org.apache.arrow:flight-sql-jdbc-driver` of Maven Central: in
Maven's or Gradle's cache of this user, or where `WINGS_JDBC_JAR` says.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import wings_client
from wings_server.testing import RunningServer

PROGRAM = Path(__file__).parent / "jdbc" / "Statements.java"

RUN_SECONDS = 120


@pytest.fixture
def java() -> str:
    """A java that compiles a source file."""
    found = shutil.which("java")
    if found is None:
        pytest.skip("there is no java")
    modules = subprocess.run([found, "--list-modules"], capture_output=True, text=True, check=False)
    if "jdk.compiler" not in modules.stdout:
        pytest.skip(f"{found} is no JDK of 11 or later: it has no compiler")
    return found


@pytest.fixture
def jar() -> Path:
    """The driver."""
    named = os.environ.get("WINGS_JDBC_JAR")
    if named:
        return Path(named)
    for cache in (".m2/repository", ".gradle/caches"):
        found = sorted((Path.home() / cache).rglob("flight-sql-jdbc-driver-*.jar"))
        if found:
            return found[-1]
    pytest.skip("there is no flight-sql-jdbc-driver: set WINGS_JDBC_JAR")


def test_the_driver_reads_topics(server: RunningServer, java: str, jar: Path) -> None:
    table = "jdbc-numbers"
    with wings_client.connect(server.flight) as client:
        client.create_topic(table, {"n": "int64", "text": "string"})
        client.push(table, {"n": list(range(100)), "text": [f"t{n}" for n in range(100)]})
    address = server.flight.removeprefix("grpc://")
    url = f"jdbc:arrow-flight-sql://{address}?useEncryption=false"
    ran = subprocess.run(
        [
            java,
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            *("-cp", str(jar), str(PROGRAM), url, table),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    bigint, varchar, timestamp = "-5", "12", "2014"
    assert ran.stdout.splitlines() == [
        "product Wings",
        "transactions false 0 false",
        "joins true true true",
        "others true false false 0 true IFNULL true",
        f"table default.{table}",
        *(f"column n {bigint}", f"column text {varchar}", f"column __partition {varchar}"),
        *(f"column __offset {bigint}", f"column __timestamp {timestamp}"),
        *("row 0 t0 0", "row 1 t1 1"),
        *("prepared t7", "prepared t8"),
        "refused true",
    ], ran.stderr
