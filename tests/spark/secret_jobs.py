"""Jobs of every kind over TLS with a token, in a session that writes down all that Spark can.

python secret_jobs.py DIRECTORY ENDPOINT CERTIFICATES TOKEN_FILE

The topics `there` and `copy` have a column `n`. What Spark shows of plans, what its UI serves and
the command lines of its processes are written to DIRECTORY/shown, its logs to standard error.
"""

import contextlib
import json
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wings_spark
from wings_core.queue.sqlite import SqliteQueue
from wings_spark.ingest.run import start
from wings_spark.ingest.settings import SourceSettings
from wings_spark.testing import QUICK, local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(directory: Path, endpoint: str, certificates: Path, token_file: Path) -> None:
    """Run the jobs."""
    token = token_file.read_text(encoding="utf-8")
    (directory / "events").mkdir()
    settings = QUICK | {
        "spark.log.level": "INFO",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(directory / "events"),
        "spark.sql.maxMetadataStringLength": "10000",
    }
    with local_session(settings=settings) as spark:
        given: dict[str, Any] = {
            "endpoint": endpoint,
            "token": token,
            "tlsCa": str(certificates / "ca.pem"),
            "tlsCert": str(certificates / "client.pem"),
            "tlsKey": str(certificates / "client-key.pem"),
        }
        shown = jobs(spark, directory, token_file, given)
        (directory / "a.jsonl").write_text('{"n": 7}\n', encoding="utf-8")
        queue = SqliteQueue(directory / "queue.sqlite")
        queue.send([str(directory / "a.jsonl")])
        queue.close()
        target = {"endpoint": endpoint, "topic": "copy", "token_file": str(token_file)}
        for key, name in (("tls_ca", "ca"), ("tls_cert", "client"), ("tls_key", "client-key")):
            target[key] = str(certificates / f"{name}.pem")
        source = {
            "name": "secret",
            "checkpoint": "ingest",
            "queue": {"kind": "sqlite", "path": "queue.sqlite"},
            "target": target,
        }
        start(
            spark, SourceSettings.parse(source, "source").at(directory), once=True
        ).awaitTermination()
        web = spark.sparkContext.uiWebUrl
        found = spark.sparkContext.applicationId
        pages = ["SQL/", "jobs/", "stages/", "environment/", "StreamingQuery/", "executors/"]
        pages += [f"SQL/execution/?id={number}" for number in range(12)]
        rest = ("sql?details=true&planDescription=true&length=100", "environment", "jobs")
        pages += [f"api/v1/applications/{found}/{each}" for each in rest]
        for page in pages:
            with urllib.request.urlopen(f"{web}/{page}", timeout=60) as answer:
                shown.append(answer.read().decode("utf-8", "replace"))
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                shown.append(process.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    (directory / "shown").write_text("\n".join(map(str, shown)), encoding="utf-8")
    print(json.dumps({"shown": len(shown)}))  # noqa: T201 - Its last words.


def jobs(
    spark: "SparkSession", directory: Path, token_file: Path, given: dict[str, Any]
) -> list[Any]:
    """Read, write, stream and define a table with options `given`; return what Spark shows."""
    shown: list[Any] = []
    token = given["token"]
    read = spark.read.format("wings").options(**given).load("there")
    assert read.count() == 10
    read.filter("n > 3").select("n").write.format("wings").options(**given).mode("append").save(
        "copy"
    )
    fast = wings_spark.read(spark, topic="there", **given)
    assert fast.count() == 10
    stream = spark.readStream.format("wings").options(**given, startingOffsets="earliest")
    query = (
        stream.load("there")
        .writeStream.format("wings")
        .options(**given, topic="copy", checkpointLocation=str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    shown += [query.lastProgress, _string(query, "explainInternal", True)]
    for frame in (read, fast):
        shown.append(_string(frame, "queryExecution"))
    options = ", ".join(f"{name} '{text}'" for name, text in given.items() if name != "token")
    with contextlib.suppress(Exception):  # It is not kept in a catalog.
        spark.sql(
            f"CREATE TABLE bad USING wings OPTIONS ({options}, topic 'there', token '{token}')"
        )
        shown.append("a table kept a token")
    spark.sql(
        f"CREATE TABLE t USING wings OPTIONS ({options}, topic 'there', tokenFile '{token_file}')"
    )
    assert spark.table("t").count() == 10
    shown += spark.sql("DESCRIBE EXTENDED t").collect()
    spark.sql("DROP TABLE t")
    return shown


def _string(of: Any, method: str, *arguments: Any) -> str:
    java = of._jsq if hasattr(of, "_jsq") else of._jdf
    return str(getattr(java, method)(*arguments))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
