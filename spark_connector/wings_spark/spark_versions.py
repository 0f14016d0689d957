"""Additions of Spark 4.2 and later, with substitutes for them in 4.1.

In 4.1 a stream reads all new messages at each trigger: Spark passes no limit, and has its own
available-now trigger.
"""

import inspect
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema

_TAKES_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters

ARROW_ZONE: dict[str, Any] = {"timezone": "UTC"} if _TAKES_ZONE else {}
"""Arguments that make Spark's conversion of types to Arrow use UTC; 4.1's always does."""

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
    "ARROW_ZONE",
    "HAS_READ_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]
