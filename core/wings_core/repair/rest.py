"""What metadata holds beside the log's index: which rows of it are kept, and what is lost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wings_core.check import Problem
from wings_core.model import PageAddress, StoredPage
from wings_core.partitions import Partition
from wings_core.repair.catalog import Catalog, as_int
from wings_core.repair.salvage import Salvaged
from wings_core.repair.shapes import Row

OF_THE_LOG = {"namespaces", "topics", "partitions", "pages", "folios", "inline_folios"}
"""Tables that the others of this package put together."""

OF_STAGES = {"stages", "staged_pages"}

_MEANING = {
    "consumer_offsets": "the offset of a consumer is lost",
    "producers": "where an idempotent producer stands is lost: what it repeats may come twice",
    "producer_results": "a result of a producer is lost: it cannot be told again",
    "publishes": "the outcome of a publish is lost: it cannot be told again",
    "flushes": "the outcome of a node's flush is lost: it cannot be told again",
    "share_groups": "a share group is lost",
    "shards": "how far a file was read into the log is lost: it may be read again",
    "shard_prunings": "when a source was pruned is lost",
    "tokens": "a token is lost: create it again",
    "token_changes": "whether there were tokens is lost",
    "identity": "the identity of the metadata is lost",
}

_SHOWN = ("consumer", "partition", "producer_id", "name", "writer", "source", "shard")
"""Columns that a report names."""


@dataclass(slots=True)
class Rest:
    """Rows of further tables that are kept, and what is lost."""

    rows: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])
    stages: list[tuple[Row, list[Row]]] = field(default_factory=list[tuple[Row, list[Row]]])
    """Each with its pages, in order."""
    lost: list[Problem] = field(default_factory=list[Problem])
    had_tokens: bool = False
    """Whether there may have been tokens: the log must not be open to all then."""


def read_rest(salvaged: Salvaged, catalog: Catalog, folios: Mapping[int, str]) -> Rest:
    """Return what is kept beside the log's index.

    Args:
        salvaged: What was found of metadata.
        catalog: The topics that are kept; rows of others are not.
        folios: Names of files by id.
    """
    rest = Rest()
    for name, table in salvaged.tables.items():
        if name in OF_THE_LOG | OF_STAGES:
            continue
        rest.rows[name] = [row for row in table.rows.values() if _is_kept(row, catalog)]
        rest.lost += [
            Problem(_meaning(name, row), topic=_topic_of(row, catalog))
            for row in table.lost
            if _is_kept(row, catalog)
        ]
        if table.problems and name != "identity":
            rest.lost.append(Problem(f"rows of {name} may be missing: {table.problems[0]}"))
    tokens = ("tokens", "token_changes")
    rest.had_tokens = any(
        salvaged.rows(name) or salvaged.lost(name) or not salvaged.is_complete(name)
        for name in tokens
    )
    _read_stages(rest, salvaged, catalog, folios)
    return rest


def _is_kept(row: Row, catalog: Catalog) -> bool:
    topic_id = row.get("topic_id")
    return topic_id is None or topic_id in catalog.topics


def _topic_of(row: Row, catalog: Catalog) -> str | None:
    topic_id = row.get("topic_id")
    return str(catalog.topics[as_int(topic_id)].name) if topic_id in catalog.topics else None


def _meaning(table: str, row: Row) -> str:
    shown = ", ".join(f"{column} {row[column]}" for column in _SHOWN if row.get(column) is not None)
    meaning = _MEANING.get(table, f"a row of {table} is lost")
    return f"{meaning}: {shown}" if shown else meaning


def _read_stages(
    rest: Rest, salvaged: Salvaged, catalog: Catalog, folios: Mapping[int, str]
) -> None:
    """Keep the stages of which all pages are there: part of one is never published."""
    pages: dict[int, list[Row]] = {}
    for row in salvaged.rows("staged_pages"):
        pages.setdefault(as_int(row["stage_id"]), []).append(row)
    for stage in salvaged.rows("stages"):
        if stage["name"] is None or stage["topic_id"] not in catalog.topics:
            continue
        found = sorted(pages.get(as_int(stage["id"]), ()), key=lambda page: as_int(page["number"]))
        counted = (as_int(stage["pages"]), as_int(stage["rows"]), as_int(stage["bytes"]))
        stored = [page for page, _ in staged(found, folios)]
        there = (len(stored), sum(page.rows for page in stored), sum(page.bytes for page in stored))
        numbers = [page["number"] for page in found]
        if counted == there and numbers == list(range(len(found))):
            rest.stages.append((stage, found))
        else:
            rest.lost.append(_lost_stage(stage, catalog))
    rest.lost += [
        _lost_stage(row, catalog) for row in salvaged.lost("stages") if row.get("name") is not None
    ]
    if not salvaged.is_complete("stages"):
        rest.lost.append(Problem("stages may be missing that were not published"))


def staged(rows: Sequence[Row], folios: Mapping[int, str]) -> Iterator[tuple[StoredPage, Row]]:
    """Yield the pages of a stage whose files are known, each with its row."""
    for row in rows:
        folio = folios.get(as_int(row["folio_id"]))
        if folio is not None:
            address = PageAddress(folio, as_int(row["position"]), as_int(row["length"]))
            first, size = row["first_row"], row["slice_bytes"]
            yield (
                StoredPage(
                    Partition(str(row["partition"])),
                    as_int(row["rows"]),
                    address,
                    None if first is None else as_int(first),
                    None if size is None else as_int(size),
                    as_int(row["schema_version"]),
                ),
                row,
            )


def _lost_stage(row: Row, catalog: Catalog) -> Problem:
    message = "it is lost, as not all of it is there"
    return Problem(message, topic=_topic_of(row, catalog), stage=str(row.get("name")))
