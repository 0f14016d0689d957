"""Arrow's driver of JDBC, in a small program of Java.

It needs a JDK, and the driver's jar, `org.apache.arrow:flight-sql-jdbc-driver` of Maven Central: as
`make jdbc` has it, in Maven's or Gradle's cache of this user, or where `WINGS_JDBC_JAR` says.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from waiting import until

import wings_client
from wings_server.testing import RunningServer

PROGRAM = Path(__file__).parent / "jdbc" / "Statements.java"

MADE = Path(__file__).parents[2] / ".venv" / "flight-sql-jdbc-driver.jar"
"""What `make jdbc` has downloaded."""


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
    if MADE.exists():
        return MADE
    for cache in (".m2/repository", ".gradle/caches"):
        found = sorted((Path.home() / cache).rglob("flight-sql-jdbc-driver-*.jar"))
        if found:
            return found[-1]
    pytest.skip("there is no flight-sql-jdbc-driver: `make jdbc`, or set WINGS_JDBC_JAR")


@pytest.mark.soak  # Starts Java twice; `make jdbc` has it alone.
def test_the_driver_reads_topics(server: RunningServer, java: str, jar: Path) -> None:
    table = "jdbc-numbers"
    with wings_client.connect(server.flight) as client:
        client.create_topic(table, {"n": "int64", "text": "string"})
        client.push(table, {"n": list(range(100)), "text": [f"t{n}" for n in range(100)]})
    address = server.flight.removeprefix("grpc://")
    url = f"jdbc:arrow-flight-sql://{address}?useEncryption=false"
    command = [java, "--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", str(jar), str(PROGRAM)]
    bigint, varchar, timestamp = "-5", "12", "2014"
    expected = [
        "product Wings",
        "transactions false 0 false",
        "joins true true true",
        "others true false false 0 true IFNULL true",
        f"table default.{table}",
        *(f"column n {bigint}", f"column text {varchar}", f"column __partition {varchar}"),
        *(f"column __offset {bigint}", f"column __timestamp {timestamp}"),
        *("row 0 t0 0", "row 1 t1 1"),
        *("prepared t7", "prepared t8"),
        *("takes 7 shows n", "rows true", "typed t4 4", "typed t5 5"),
        "refused true",
    ]
    with subprocess.Popen(
        [*command, url, table], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as ran:
        assert ran.stdin is not None
        assert ran.stdout is not None
        assert [ran.stdout.readline().rstrip() for _ in expected] == expected
        for ended in ("cancelled", "timed out"):
            assert ran.stdout.readline().rstrip() == ended
            until(lambda: not server.server.log.sql.running)  # While the program goes on.
            ran.stdin.write("\n")
    assert ran.returncode == 0
