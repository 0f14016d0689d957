"""A maintainer that is closed while it works."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from fix_calls import Calls
from fix_metadata import open_sqlite

from wings_core.errors import Unavailable
from wings_core.maintain import Maintainer
from wings_core.maintain.workers import WORKERS, LeaseKeeper
from wings_core.model import Topic, TopicConfig
from wings_core.partitions import Partition

SECONDS_MAX = 30.0


def test_whoever_waits_for_a_pass_is_told_that_it_ends(tmp_path: Path, calls: Calls) -> None:
    with open_sqlite(tmp_path) as under_test:
        metadata: Any = under_test.opened
        created = under_test.create_topic("k")
        topic: Topic = metadata.admin.alter_topic(created.name, TopicConfig(retention_bytes=1))
        for key in range(2 * WORKERS):
            for _ in range(2):
                under_test.push(topic, partition=Partition(str(key)))
        began, go_on = threading.Semaphore(0), threading.Event()

        def wait(*_: object, **__: object) -> None:
            began.release()
            assert go_on.wait(SECONDS_MAX)

        calls.before(metadata.maintenance, "expire", wait)
        submitted = threading.Semaphore(0)
        calls.after(ThreadPoolExecutor, "submit", lambda *_: submitted.release())
        ended: list[BaseException | None] = []

        def run() -> None:
            try:
                maintainer.run(topic)
                ended.append(None)
            except Unavailable as error:
                ended.append(error)

        with closing(Maintainer(metadata, 3_600.0, lambda: None)) as maintainer:
            # The second pass waits for workers, all of which the first one keeps.
            passes = [threading.Thread(target=run, daemon=True) for _ in range(2)]
            passes[0].start()
            for _ in range(WORKERS):
                assert began.acquire(timeout=SECONDS_MAX)
            passes[1].start()
            for _ in range(2 * WORKERS):
                assert submitted.acquire(timeout=SECONDS_MAX)
            closing_began = threading.Event()
            calls.before(LeaseKeeper, "close", lambda *_: closing_began.set())
            close = threading.Thread(target=maintainer.close, daemon=True)
            close.start()
            assert closing_began.wait(SECONDS_MAX)
            go_on.set()
            for thread in (close, *passes):
                thread.join(SECONDS_MAX)
                assert not thread.is_alive()
        assert any(isinstance(error, Unavailable) for error in ended)
