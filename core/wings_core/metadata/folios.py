"""Retired folios: fenced before they are deleted, so that no later commit can refer to them.

A store keeps a retired folio as a row of the table of folios, with the time and without pages. A
constraint of the table keeps it without pages: a commit that counts its pages there violates it,
and fails as a whole.
"""

from collections.abc import Sequence

from wings_core.errors import Internal, InvalidArgument
from wings_core.metadata.interfaces import RETIRE_MAX
from wings_core.metadata.judge import check_text
from wings_core.model import INLINE_SUFFIX, InlineFolio

RETIRED_KEPT_US = 7 * 24 * 3600 * 1_000_000
"""A retired folio is remembered for so long, in microseconds: far longer than a commit can be on
its way, also to a service or from a node that was stopped meanwhile."""

INLINE_FOLIO_BYTES_MAX = 1024 * 1024
"""The most bytes of a folio that metadata keeps."""

FOLIO_NAME_BYTES_MAX = 256

RETIRED_CONSTRAINT = "folios_retired_for_good"
"""The name of the constraint, by which its errors are known."""


def check_retired(folios: Sequence[str]) -> None:
    """Check that folios can be retired in one transaction.

    Raises:
        InvalidArgument: There are more than `RETIRE_MAX`.
    """
    if len(folios) > RETIRE_MAX:
        raise InvalidArgument(
            f"{len(folios)} folios cannot be retired at once, at most {RETIRE_MAX} can"
        )


def check_inline(inline: InlineFolio) -> None:
    """Check that metadata can keep a folio.

    Raises:
        InvalidArgument: It cannot.
    """
    name = inline.name
    if not (name.isascii() and len(name) <= FOLIO_NAME_BYTES_MAX and "\0" not in name):
        check_text("an inline folio", name, FOLIO_NAME_BYTES_MAX)
    if not name.endswith(INLINE_SUFFIX):
        raise InvalidArgument(f"an inline folio's name ends in {INLINE_SUFFIX}, not {name!r}")
    if len(inline.data) > INLINE_FOLIO_BYTES_MAX:
        raise InvalidArgument(
            f"an inline folio has {len(inline.data)} bytes, at most {INLINE_FOLIO_BYTES_MAX} can be"
        )


def refers_to_retired() -> Internal:
    """Return the error of a flush into a retired folio, whose pages are, or will be, deleted."""
    return Internal(
        "the flush came too late: its folio was retired meanwhile, nothing of it is committed"
    )
