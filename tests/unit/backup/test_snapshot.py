"""The moment of a backup."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from waiting import until

from wings_core.backup.backups import take_snapshot
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.share.replica.copies import FileCopies
from wings_core.times import now_us


def test_a_moment_is_no_later_than_the_state_that_is_copied(tmp_path: Path) -> None:
    fixed_at: list[int] = []

    class AtService(SqliteMetadata):
        """Metadata at a service, which copies all of it before it answers."""

        @contextmanager
        def copying(self) -> Generator[Callable[[Path], None]]:
            with super().copying() as copy:
                fixed_at.append(now_us())
                until(lambda: now_us() > fixed_at[0])
                yield copy

    (tmp_path / "into").mkdir()
    with AtService(tmp_path / "metadata.db") as metadata:
        found = take_snapshot(metadata, FileCopies(tmp_path / "holds.db"), tmp_path / "into")
    assert found.at <= fixed_at[0]
