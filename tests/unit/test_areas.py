"""Areas of `make test AREA=…`."""

import subprocess
import sys

import areas


def test_every_test_file_belongs_to_an_area() -> None:
    of_areas = {path for area in areas.AREAS for path in areas.files(area)}
    assert of_areas == set(areas.TESTS.rglob("test_*.py"))


def test_an_unknown_area_is_refused_with_the_names_of_all() -> None:
    ended = subprocess.run(
        [sys.executable, areas.__file__, "shares"], capture_output=True, text=True, check=False
    )
    assert ended.returncode != 0
    assert "share, spark" in ended.stderr
