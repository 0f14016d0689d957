import os
import resource
import subprocess
import sys

import pytest

from wings_server import resources

pytestmark = pytest.mark.programs

_TAKE = """
import os
import wings_client.cli.app, wings_server.cli  # Which leave pyarrow to the command.
from wings_core.memory import machine_bytes
from wings_server.resources import load_bounded
print(load_bounded(), *sorted(name for name in os.environ if "MIMALLOC" in name))
import pyarrow as pa
taken = []
try:
    while len(taken) < 12:
        taken.append(pa.allocate_buffer(machine_bytes() // 2 // 10))
except MemoryError:
    pass
print(len(taken))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mmap takes what there is not")
@pytest.mark.parametrize(
    ("set_by_user", "said"),
    [
        ({}, ["True", "9"]),
        ({"MIMALLOC_ARENA_RESERVE": "1GiB"}, ["False MIMALLOC_ARENA_RESERVE", "12"]),
    ],
)
def test_arrow_may_take_half_the_memory_unless_the_environment_says_more(
    set_by_user: dict[str, str], said: list[str]
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIMALLOC_")}
    # In a process of its own, as the allocator looks once; nothing of what it takes is touched.
    done = subprocess.run(
        [sys.executable, "-c", _TAKE],
        env=kept | set_by_user,
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    assert done.stdout.splitlines() == said


_TOUCH = """
from wings_core.memory import own_bytes
from wings_server.resources import load_bounded
load_bounded()
import pyarrow as pa
taken = memoryview(pa.allocate_buffer(256 << 20)).cast("B")
before = own_bytes()
for place in range(0, len(taken), 2 << 20):
    taken[place] = 1
print(own_bytes() - before < 32 << 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is bounded")
def test_memory_that_arrow_was_given_and_does_not_touch_is_not_used() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIMALLOC_")}
    touch = [sys.executable, "-c", _TOUCH]
    assert subprocess.check_output(touch, env=kept, text=True, timeout=150) == "True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is bounded")
def test_one_of_very_many_processes_may_take_some() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIMALLOC_")}
    subprocess.run(
        [sys.executable, "-c", "import pyarrow; pyarrow.allocate_buffer(1024)"],
        env=kept | resources.arrow_bounds(1_000_000),
        check=True,
        timeout=150,
    )


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_nothing_is_reserved_where_that_is_limited(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getrlimit(asked: int) -> tuple[int, int]:
        soft = 1 << 30 if asked == limit else resource.RLIM_INFINITY
        return soft, resource.RLIM_INFINITY

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    assert resources.arrow_bounds() == {}


# The allocator of the rest. #######################################################################


_TUNE = "from wings_server.resources import keep_freed_memory; print(keep_freed_memory())"


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own")
@pytest.mark.parametrize(
    ("set_by_user", "tuned"), [({}, "True"), ({"MALLOC_ARENA_MAX": "1"}, "False")]
)
def test_the_allocator_is_tuned_unless_the_environment_does(
    set_by_user: dict[str, str], tuned: str
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    # In a process of its own, as the setting cannot be taken back.
    done = subprocess.run(
        [sys.executable, "-c", _TUNE],
        env=kept | set_by_user,
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    assert done.stdout.strip() == tuned
