"""The catalog of tables is opened when it is first needed, once, and holds up no other."""

import threading
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

from wings_core.tables.catalog import Catalog


def test_a_catalog_is_opened_once_and_beside_others() -> None:
    opened: list[object] = []
    together = threading.Barrier(2, timeout=60)

    def open_one() -> object:
        together.wait()  # Broken where one of the two is opened after the other.
        opened.append(object())
        return opened[-1]

    catalogs = [Catalog(open_one, "file:///one"), Catalog(open_one, "file:///other")]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(attrgetter("catalog"), 2 * catalogs))
    assert len(opened) == 2
    assert found[:2] == found[2:]
