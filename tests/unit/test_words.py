"""The check of how texts in the code begin, as `make check` runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

WORDS = Path(__file__).parents[2] / "tools/words.py"

BAD = '''\
"""What the module is."""

#: Of each row: its size.
#: And more of it.
SIZE = 1


class Reader:
    """Those that read.

    Attributes:
        name: Whose it is.
            As it was given.
        size (int): Rows.
    """

    name: str
    """By which it is known."""

    def read(self) -> int:
        """Whether it reads.

        Returns:
            What was read.

        Raises:
            OSError: It does not.
        """
'''

GOOD = '''\
"""A module.

As many words as you like may follow.
"""

#: Size of each row.
#: Of all rows, where they are alike.
SIZE = 1


def read(size: int) -> int:
    """Read as many rows.

    Args:
        size: Rows, at most.
            What follows belongs to the entry.

    What follows the section is prose.
    """
    text = """What is no docstring."""
    return text  # Of no interest.
'''


@pytest.mark.parametrize(("source", "lines"), [(BAD, [1, 3, 9, 12, 18, 21, 24]), (GOOD, [])])
def test_texts_that_begin_with_a_pronoun_or_a_preposition_are_named_with_their_lines(
    tmp_path: Path, source: str, lines: list[int]
) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    ran = subprocess.run(
        [sys.executable, WORDS, tmp_path], capture_output=True, text=True, check=False
    )
    named = [line.removeprefix(f"{path}:").split(":")[0] for line in ran.stdout.splitlines()]
    assert (named, ran.returncode, ran.stderr) == ([str(n) for n in lines], int(bool(lines)), "")
