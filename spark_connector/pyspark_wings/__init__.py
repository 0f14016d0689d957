"""Lets Spark find the data source `wings` by its name, without `wings_spark.register`.

Spark imports every installed module called `pyspark_…` for this, in every application that uses any
Python data source, so nothing more is imported here than the class itself needs.
"""

from wings_spark.source import WingsDataSource as DefaultSource

__all__ = ["DefaultSource"]
