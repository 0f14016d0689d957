"""What the journal of metadata has and its tables lack; see `metadata.sqlite.journal`."""

from collections.abc import Mapping
from typing import Any

from wings_core.metadata.results import RESULTS_KEPT_MAX
from wings_core.model import PageFormat
from wings_core.repair.salvage import Salvaged

_OF_PAGE = ("partition_id", "start_offset", "end_offset", "timestamp", "schema_version")


def take_journal(salvaged: Salvaged) -> None:
    """Bring the sound rows of the journal into the tables, as a start would; tell of lost ones."""
    tables = salvaged.tables
    if not salvaged.is_complete("journal"):
        salvaged.losses.append("small pushes of the last moment before it was stopped may be lost")
    rows: list[Mapping[str, Any]] = salvaged.rows("journal")
    known = [*salvaged.rows("folios"), *salvaged.lost("folios"), *salvaged.rows("pages")]
    ids = [row.get("id", row.get("folio_id")) for row in known]
    folio_id = max((number for number in ids if isinstance(number, int)), default=0)
    for row in sorted(rows, key=lambda each: each["id"]):
        partition: Mapping[str, Any] | None
        partition = tables["partitions"].rows.get((row["partition_id"],))
        if partition is not None and row["end_offset"] < partition["next_offset"]:
            continue  # Of before: it was applied.
        folio_id += 1
        tables["folios"].rows[(folio_id,)] = {"id": folio_id, "name": row["folio"], "pages": 1}
        tables["inline_folios"].rows[(folio_id,)] = {"folio_id": folio_id, "data": row["data"]}
        tables["pages"].rows[row["partition_id"], row["end_offset"]] = {
            **{column: row[column] for column in _OF_PAGE},
            "folio_id": folio_id,
            "position": 0,
            "length": len(row["data"]),
            "format": int(PageFormat.INLINE),
            "first_timestamp": None,
            "first_row": None,
            "slice_bytes": None,
        }
        # Where the partition ends, its pages tell.
        if partition is not None and row["producer_id"] is not None:
            _take_result(salvaged, partition["topic_id"], row)


def _take_result(salvaged: Salvaged, topic_id: int, row: Mapping[str, Any]) -> None:
    key = (topic_id, row["producer_id"])
    salvaged.tables["producers"].rows[key] = {
        "topic_id": topic_id,
        "producer_id": row["producer_id"],
        "next_sequence": row["sequence"] + 1,
    }
    slot = row["sequence"] % RESULTS_KEPT_MAX
    salvaged.tables["producer_results"].rows[(*key, slot)] = {
        "topic_id": topic_id,
        "producer_id": row["producer_id"],
        "slot": slot,
        "sequence": row["sequence"],
        "committed": row["committed"],
        "committed_at": row["committed_at"],
    }
