"""A run that is asked to end does so, also where it hangs."""

import signal
import subprocess
import sys
import threading

import pytest
from forked_commands import FORKED

from wings_spark.ingest.stopping import Stopped, StopSignals

pytestmark = pytest.mark.programs

SECONDS_MAX = 60.0

_PROGRAM = f"""{FORKED}
import sys, time
from wings_spark.ingest import stopping

stopping.GRACE_SECONDS = 0.1
with stopping.StopSignals() as stop:
    try:
        if sys.argv[1] == "in_order":
            with stop.in_order():
                print("ready", flush=True)
                while True:
                    time.sleep(60)
        print("ready", flush=True)
        time.sleep(600)
    except stopping.Stopped:
        if sys.argv[1] == "hangs":
            while True:
                time.sleep(60)
sys.exit(stop.status)
"""


@pytest.mark.parametrize("way", ["hangs", "in_order", "ends"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_process_that_hangs_is_ended_with_the_status_of_its_signal(
    way: str, number: signal.Signals, status: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, way], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(SECONDS_MAX) == status


def test_handlers_are_put_back_where_no_signal_came() -> None:
    before = signal.getsignal(signal.SIGTERM)
    threads = threading.active_count()
    with StopSignals() as stop:
        assert signal.getsignal(signal.SIGTERM) != before
        assert not stop.asked
    assert signal.getsignal(signal.SIGTERM) == before
    assert threading.active_count() <= threads + 1
    assert issubclass(Stopped, BaseException)


def test_a_signal_whose_exception_was_lost_ends_what_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = list[object]()

    def lose(found: "sys.UnraisableHookArgs") -> None:
        lost.append(found.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", lose)

    class Dies:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    stop = StopSignals()
    stop.catch()
    try:
        Dies()
        assert lost == [Stopped]
        with pytest.raises(Stopped):
            stop.catch()
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
