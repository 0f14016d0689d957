import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.programs

_TUNE = "from wings_server.allocator import keep_freed_memory; print(keep_freed_memory())"


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
