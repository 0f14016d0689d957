"""Spark's versions: what 4.2 added to streams, and what stands for it in 4.1.

In 4.1 a stream reads all there is at each trigger; Spark asks for no limit there, and has an
available-now trigger of its own.
"""

from typing import TYPE_CHECKING

HAS_READ_LIMITS = True
"""Whether Spark passes limits to a stream."""

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            ReadMinRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:
        HAS_READ_LIMITS = False
        ReadLimit = ReadAllAvailable = ReadMaxRows = ReadMinRows = object
        SupportsTriggerAvailableNow = object

__all__ = [
    "HAS_READ_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]
