"""Processes of Wings do without pandas, where it is installed.

pyarrow.dataset imports it, which takes longer than all the rest and some 50 MB; nothing here uses
it.
"""

import sys


class _WithoutPandas:
    """The first of `sys.meta_path`: to all that imports it, pandas is not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def hide_pandas() -> None:
    """Have this process find no pandas; for processes that run nothing but Wings."""
    if _WithoutPandas not in sys.meta_path:
        sys.meta_path.insert(0, _WithoutPandas)
