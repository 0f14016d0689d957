"""Spark's own source and sink of Kafka: one topic copied into another, in batches and as a stream.

Arguments: the folder of jars, the address of Kafka's clients, the two topics, and a directory for
checkpoints.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

jars, address, source, target, checkpoints = sys.argv[1:]
session = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", ",".join(str(jar) for jar in Path(jars).glob("*.jar")))
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
options = {"kafka.bootstrap.servers": address, "subscribe": source, "includeHeaders": "true"}
columns = ["partition", "key", "value", "headers"]
read = session.read.format("kafka").options(**options).load()
read.select(columns).write.format("kafka").options(**options).option("topic", target).save()
stream = session.readStream.format("kafka").options(**options, startingOffsets="earliest").load()
(
    stream.select(columns)
    .writeStream.format("kafka")
    .options(**options, topic=target, checkpointLocation=checkpoints)
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
session.stop()
