"""The functions of `pyarrow.compute`, imported by the first call.

The import takes half as long as that of `pyarrow.flight`; many processes compute nothing, or only
once they serve.
"""

from importlib import import_module
from typing import Any


class _Functions:
    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module("pyarrow.compute"), name)
        setattr(self, name, found)  # A plain attribute from then on.
        return found


pc: Any = _Functions()
"""The functions, by the names of `pyarrow.compute`."""
