"""Durations in settings and options: `500ms`, `30s`, `2h`, or a number in a known unit."""

import re

from pydantic import BeforeValidator

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(rf"([0-9]+(?:[.][0-9]+)?)({'|'.join(_UNITS_MS)})?")


def duration_in(unit: str, text: str) -> float | None:
    """Return a duration in a unit, which is also that of a plain number; None if it is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    return float(found[1]) * _UNITS_MS[found[2] or unit] / _UNITS_MS[unit]


def _seconds(value: object) -> object:
    seconds = duration_in("s", value) if isinstance(value, str) else None
    return value if seconds is None else seconds


DURATION = BeforeValidator(_seconds)
"""Lets a setting in seconds be given with a unit as well."""
