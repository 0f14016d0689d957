"""Start the process of statements: `process`, without pandas.

pyarrow.dataset imports pandas wherever it is installed, which takes longer than all the rest and
some 50 MB; nothing here uses it.
"""

import sys


class _WithoutPandas:
    """The first of `sys.meta_path`: to all that imports it, pandas is not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


if __name__ == "__main__":
    sys.meta_path.insert(0, _WithoutPandas)
    from wings_core.sql_process.process import main

    main(sys.argv[1:])
