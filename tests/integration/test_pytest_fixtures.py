"""The fixtures that the package brings for tests of its users."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"

BEFORE = """
import sys

def test_nothing_is_imported_before_a_test_asks_for_it():
    assert not {"pyarrow", "wings_client", "wings_server"} & set(sys.modules)
"""
AFTER = """
def test_topics_of_other_tests_are_gone(wings, wings_server):
    assert list(wings.topics()) == []
    assert wings_server.http.startswith("http://127.0.0.1:")
"""


def test_the_tests_of_the_documentation_pass(pytester: pytest.Pytester) -> None:
    with_fixtures, with_address, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    pytester.makepyfile(BEFORE + with_fixtures + AFTER + with_address)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=4)
