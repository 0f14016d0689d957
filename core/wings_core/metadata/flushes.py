"""The last flush of each writer, so that a commit whose response was lost can be retried.

A store keeps the last flush of each writer, in the transaction of its commit: a writer begins its
next flush only when it will not retry this one. So a repeated flush gets its first results, and one
that arrives after a later flush of its writer is rejected.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from wings_core.errors import InvalidArgument, error_from_json
from wings_core.model import Accepted, CommitResult, FlushId, Rejected, SeriesResults, Staged

FLUSHES_KEPT_US = 24 * 3600 * 1_000_000
"""A writer's last flush is forgotten when it is older than this, in microseconds: far longer than
any writer retries, so that the table is bounded by the writers of a day."""

_ACCEPTED = TypeAdapter(Accepted)
_STAGED = TypeAdapter(Staged)
_STORED: TypeAdapter[list[dict[str, Any]]] = TypeAdapter(list[dict[str, Any]])


def is_repeat(flush_id: FlushId, last_number: int | None) -> bool:
    """Tell whether a flush repeats its writer's last one.

    Args:
        flush_id: Of the flush to be committed.
        last_number: Of the writer's last flush; None where none is remembered.

    Raises:
        InvalidArgument: It is older than that one.
    """
    if last_number is None or flush_id.number > last_number:
        return False
    if flush_id.number == last_number:
        return True
    raise InvalidArgument(
        f"flush {flush_id.number} came after flush {last_number} of the same writer: "
        "it was abandoned, and is not committed"
    )


def dump_results(results: Sequence[CommitResult]) -> str:
    """Return the results of a flush as JSON, to be stored."""
    return _STORED.dump_json([_dump(result) for result in results]).decode()


def load_results(stored: str) -> list[CommitResult]:
    """Return what `dump_results` was given; errors keep code, message and facts."""
    return [_load(entry) for entry in _STORED.validate_json(stored)]


def _dump(result: CommitResult) -> dict[str, Any]:
    match result:
        case Accepted():
            return {"accepted": _ACCEPTED.dump_python(result, mode="json")}
        case Staged():
            return {"staged": _STAGED.dump_python(result, mode="json")}
        case Rejected(error):
            return {"error": error.to_json()}
        case SeriesResults(each):
            return {"series": [_dump(one) for one in each]}


def _load(entry: dict[str, Any]) -> CommitResult:
    if "accepted" in entry:
        return _ACCEPTED.validate_python(entry["accepted"])
    if "staged" in entry:
        return _STAGED.validate_python(entry["staged"])
    if "series" in entry:
        return SeriesResults(tuple([_load(one) for one in entry["series"]]))
    return Rejected(error_from_json(entry["error"]))
