# To be forked; see `forked_commands`.
"""Gives a process a wall clock that is off: for tests, put on the path of a child by `off_by`.

It runs before anything of ours does, which looks into `time` whenever it asks for the time. gRPC
goes on by the right clock: it reckons deadlines by Python's clock and then compares them with C's,
which stays as it is.
"""

import inspect
import os
import time

_OFF_SECONDS = float(os.environ["TESTS_CLOCK_OFF_SECONDS"])
_OFF_NS = round(_OFF_SECONDS * 1e9)
_time, _time_ns = time.time, time.time_ns


def _off_time() -> float:
    here = inspect.currentframe()
    assert here is not None
    assert here.f_back is not None
    if here.f_back.f_globals.get("__name__", "").startswith("grpc"):
        return _time()
    return _time() + _OFF_SECONDS


time.time = _off_time
time.time_ns = lambda: _time_ns() + _OFF_NS
