"""The processes of SQL: fresh interpreters, which know few modules, and no secrets.

What one says on its standard error, such as C++ of memory that it did not get, is in the server's
log where it ends by itself.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

SAID_BYTES_MAX = 4_096
"""Of the last that a process said, so many bytes are logged; a pipe keeps 64 KiB."""

_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")
"""What a process is told of the server's environment."""

_logger = logging.getLogger(__name__)


class Process:
    """A process that is started; its owner closes it.

    Args:
        module: What it runs.
        arguments: For it.
        descriptors: That it has too.
    """

    def __init__(self, module: str, arguments: Sequence[str], descriptors: Sequence[int]) -> None:
        self._module = module
        self._said, said = os.pipe()
        # A process that says more than the pipe keeps loses it, and does not wait for a reader.
        os.set_blocking(said, False)
        try:
            self._started = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=descriptors,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,  # A terminal's Ctrl-C is the server's.
            )
        except BaseException:
            os.close(self._said)
            raise
        finally:
            os.close(said)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._started.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._started.poll() is None

    def kill(self) -> None:
        """End the process, whatever it does; does not wait for its end."""
        self._started.kill()

    def close(self) -> None:
        """End the process; logs what it said where it has ended by itself."""
        self.kill()
        code = self._started.wait()
        with os.fdopen(self._said, "rb") as pipe:
            if code not in (0, -signal.SIGKILL):
                os.set_blocking(self._said, False)
                said = (pipe.read() or b"")[-SAID_BYTES_MAX:].decode(errors="replace").strip()
                _logger.warning("%s ended by itself (%d): %s", self._module, code, said)
