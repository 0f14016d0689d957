"""The form in which a producer's results are stored: JSON."""

from collections.abc import Sequence
from json.encoder import encode_basestring

from pydantic import TypeAdapter

from wings_core.model import CommittedRange

_RANGES = TypeAdapter(tuple[CommittedRange, ...])


def ranges_to_json(committed: Sequence[CommittedRange]) -> str:
    """Return what a batch got, to be stored; formatted by hand, as it is once for each batch."""
    ranges = [
        f'{{"partition":{encode_basestring(each.partition)},"start_offset":{each.start_offset},'
        f'"end_offset":{each.end_offset},"timestamp":{each.timestamp}}}'
        for each in committed
    ]
    return f"[{','.join(ranges)}]"


def ranges_from_json(text: str) -> tuple[CommittedRange, ...]:
    """Return what was stored of a batch."""
    return _RANGES.validate_json(text)
