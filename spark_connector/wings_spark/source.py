"""The data source `wings`, from which Spark makes readers and writers.

Spark imports this module in every application that uses any Python data source, so all but the
class itself is imported on use.
"""

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

NAME = "wings"

_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module that Spark runs to plan a read with filters pushed down, and for nothing else."""


class WingsDataSource(DataSource):
    """Topics of Wings as DataFrames.

    The options are those of `wings_spark.options` and `wings_spark.write_options`.
    """

    @classmethod
    def name(cls) -> str:
        """Return what `format` takes."""
        return NAME

    def schema(self) -> "StructType":
        """Return the columns of the topic, or those that the option `columns` names."""
        import wings_client
        from wings_spark.options import ReadOptions
        from wings_spark.subscription import Subscription
        from wings_spark.types import spark_schema
        from wings_spark.worker import prepare_worker

        prepare_worker()
        options = ReadOptions.parse(self.options)
        with wings_client.connect(options.endpoint) as client:
            return spark_schema(Subscription.checked(client, options).schema(options))

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """Return the reader of a batch read."""
        from wings_spark.options import ReadOptions
        from wings_spark.reader import PushingReader, WingsReader

        options = ReadOptions.parse(self.options).for_batch()
        return (PushingReader if _takes_filters() else WingsReader)(options, schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        """Return the reader of a stream."""
        from wings_spark.options import ReadOptions
        from wings_spark.stream import WingsStreamReader

        return WingsStreamReader(ReadOptions.parse(self.options).for_stream(), schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """Return the writer of a batch write."""
        from wings_core.errors import InvalidArgument
        from wings_spark.write_options import WriteOptions
        from wings_spark.writer import WingsWriter

        if overwrite:
            raise InvalidArgument("a topic can only be appended to: write with mode('append')")
        return WingsWriter(WriteOptions.for_batch(self.options), schema)

    def streamWriter(  # noqa: N802 - Spark's name.
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        """Return the writer of a stream."""
        from wings_core.errors import InvalidArgument
        from wings_spark.stream_writer import WingsStreamWriter
        from wings_spark.write_options import WriteOptions

        if overwrite:
            raise InvalidArgument(
                "a topic can only be appended to: use outputMode('append'), not 'complete'"
            )
        return WingsStreamWriter(WriteOptions.for_stream(self.options), schema)


def _takes_filters() -> bool:
    """Tell whether Spark plans this read with filters pushed down.

    The setting itself does not reach the process that plans.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING_WORKER in sys.modules or (main is not None and main.name == _PUSHING_WORKER)
