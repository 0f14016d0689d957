"""Spark's versions: what 4.2 and later added, and what stands for it in 4.1.

In 4.1 a stream reads all there is at each trigger; Spark asks for no limit there, and has an
available-now trigger of its own.
"""

import inspect
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema

_TAKES_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters

ARROW_ZONE: dict[str, Any] = {"timezone": "UTC"} if _TAKES_ZONE else {}
"""What has Spark's own translation of types to Arrow's put times into UTC; 4.1's always does."""

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
