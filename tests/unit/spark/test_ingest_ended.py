"""The reason why a query ended, out of Spark's pages."""

import pytest

from wings_spark.ingest.run import ended_with

FAILED = "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: "
TOPIC = "wings_core.errors.TopicNotFound: topic 'a' does not exist SQLSTATE: 38000"
STATE = "\n=== Streaming Query ===\nCurrent State: ACTIVE\nThread State: RUNNABLE"


@pytest.mark.parametrize(
    ("text", "reason", "is_configuration"),
    [
        (
            f"{FAILED}Failed: Traceback:\nRuntimeError: first\n{TOPIC}{STATE}",
            "topic 'a' does not exist",
            True,
        ),
        (
            f"{FAILED}Failed:\nwings_core.errors.SchemaMismatch: no column 'a'{STATE}",
            "no column 'a'",
            True,
        ),
        (
            f"{FAILED}Failed:\nwings_core.errors.Unavailable: the server is away{STATE}",
            "the server is away",
            False,
        ),
        (
            f"{FAILED}Python worker failed to connect back.{STATE}",
            "a Python worker of Spark did not start in time",
            False,
        ),
        (
            f"{FAILED}Job aborted\nCaused by: java.io.IOException: No space left on device{STATE}",
            "IOException: No space left on device",
            False,
        ),
        (f"{FAILED}{STATE}", "a process of Spark ended", False),
        ("", "a process of Spark ended", False),
    ],
)
def test_the_reason_is_one_line(text: str, reason: str, is_configuration: bool) -> None:
    found = ended_with(text)
    assert (found.reason, found.is_configuration) == (reason, is_configuration)
