"""Topics of Wings as DataFrames of Spark.

    import wings_spark

    wings_spark.register(spark)
    flights = (
        spark.read.format("wings")
        .option("endpoint", "grpc://127.0.0.1:7777")
        .option("topic", "flights")
        .load()
    )

`wings_spark.read` is the faster way for batch reads that name their columns or a filter.
"""

from wings_spark.source import read, register

__all__ = ["read", "register"]
