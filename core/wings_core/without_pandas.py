"""Hides an installed pandas from processes that run only Wings.

pyarrow.dataset imports pandas, which takes longer than all other imports, and some 50 MB; Wings
does
not use it.
"""

import sys


class _WithoutPandas:
    """A finder, first in `sys.meta_path`, for which pandas does not exist."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def hide_pandas() -> None:
    """Hide pandas from this process; only for processes that run nothing but Wings."""
    if _WithoutPandas not in sys.meta_path:
        sys.meta_path.insert(0, _WithoutPandas)
