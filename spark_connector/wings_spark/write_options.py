"""Options that users set with `.option(…)` on a write, as a frozen model."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from wings_core.contracts.messages import INT64_MAX, problem_of
from wings_spark.options import Options

_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of the stream itself that Spark passes too, in lower case."""


class WriteOptions(Options):
    """Options of writes, both batches and streams."""

    topic: Annotated[str, Field(min_length=1)]
    txn_app_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Application id which, with `txn_version`, makes a repeated write published once, as in Delta
    Lake."""
    txn_version: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None

    @classmethod
    def for_batch(cls, given: Mapping[str, str]) -> Self:
        """Validate the options of a batch write.

        Raises:
            InvalidArgument: An option is missing, unknown, or has a bad value; the message names
                it.
        """
        return cls.parse(given)

    @classmethod
    def for_stream(cls, given: Mapping[str, str]) -> Self:
        """Validate the options of a streaming write.

        Raises:
            InvalidArgument: See `for_batch`; or an option is only for batch writes.
        """
        found = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
        return cls.parse(found).refuse(("txn_app_id", "txn_version"), "batch writes")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise problem_of("options 'txnAppId' and 'txnVersion' go together: give both or none")
        return self
