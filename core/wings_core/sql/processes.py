"""The processes of SQL: fresh interpreters, which know few modules, and no secrets."""

import os
import subprocess
import sys
from collections.abc import Sequence

_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")
"""What a process is told of the server's environment."""


def start_process(
    module: str, arguments: Sequence[str], descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a process; its caller kills it and waits for its end.

    Args:
        module: What it runs.
        arguments: For it.
        descriptors: That it has too.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # What C++ says of memory that it did not get.
        pass_fds=descriptors,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        start_new_session=True,  # A terminal's Ctrl-C is the server's.
    )
