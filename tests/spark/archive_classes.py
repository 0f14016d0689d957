"""Write an archive of the classes that Spark loads, from which Java maps them at its next starts.

python archive_classes.py FILE

To find, parse and link its classes is two fifths of the work of a session over few rows.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from wings_spark.testing import QUICK, local_session


def main(file: Path) -> None:
    """Run a little of what tests run, and wait until Java has written the archive at its end."""
    with tempfile.TemporaryDirectory(dir=file.parent) as directory:
        written = Path(directory) / "classes.jsa"
        java = f"{QUICK['spark.driver.extraJavaOptions']} -XX:ArchiveClassesAtExit={written}"
        settings = QUICK | {"spark.driver.extraJavaOptions": f"{java} -Xlog:disable"}
        with local_session(settings=settings) as spark:
            rows = spark.range(10).selectExpr("id", "id % 2 AS k", "string(id) AS text")
            rows.write.json(f"{directory}/rows")
            found = spark.read.schema(rows.schema).json(f"{directory}/rows")
            found.filter("id > 3").groupBy("k").count().orderBy("k").collect()
            stream = spark.readStream.schema(rows.schema).json(f"{directory}/rows")
            writer = stream.writeStream.format("json").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
            writer.start(f"{directory}/written").awaitTermination()
            gateway: Any = spark.sparkContext._gateway  # pyright: ignore[reportPrivateUsage]
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        written.replace(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
