"""Many followers of one log: each gets what it wished for, whatever the others share."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import wings_client
from wings_client import Client
from wings_server.testing import running_server

COMMITS = 6
WISHES: Sequence[Mapping[str, Any]] = (
    {},
    {"columns": ["n"]},
    {"filter": "n > 2"},
    {"filter": "n > 2", "columns": ["key"]},
    {"system_columns": True},
)
FOLLOWERS_OF_A_WISH = 3


@pytest.fixture
def client() -> Iterator[Client]:
    with running_server() as server, wings_client.connect(server.flight) as client:
        yield client


@pytest.mark.parametrize("key", [None, "key"])
def test_followers_of_different_wishes_get_every_row_once(client: Client, key: str | None) -> None:
    client.create_topic("news", {"key": "int64", "n": "int64"}, key)
    rows = [{"key": n % 2, "n": n} for n in range(COMMITS)]
    found: list[list[dict[str, Any]]] = []
    readers: list[threading.Thread] = []
    for wish in WISHES:
        selected = [row for row in rows if row["n"] > 2 or "filter" not in wish]
        wanted = wish.get("columns", ["key", "n"])
        expected = [{name: row[name] for name in wanted} for row in selected]
        for _ in range(FOLLOWERS_OF_A_WISH):
            got: list[dict[str, Any]] = []
            found.append(got)
            follow = client.follow("news", **wish)
            readers.append(threading.Thread(target=_read, args=(follow, got, wanted, expected)))
    for reader in readers:
        reader.start()
    for row in rows:
        client.push("news", {name: [value] for name, value in row.items()})
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    for index, got in enumerate(found):
        wish = WISHES[index // FOLLOWERS_OF_A_WISH]
        selected = [row for row in rows if row["n"] > 2 or "filter" not in wish]
        wanted = wish.get("columns", ["key", "n"])
        expected = [{name: row[name] for name in wanted} for row in selected]
        if key is None:
            assert got == expected
        else:  # The order between partitions is not promised.
            assert sorted(got, key=str) == sorted(expected, key=str)


def _read(
    follow: Any, got: list[dict[str, Any]], wanted: Sequence[str], expected: Sequence[object]
) -> None:
    for item in follow:
        got.extend(item[0].select(list(wanted)).to_pylist())
        if len(got) >= len(expected):
            break
    follow.close()
