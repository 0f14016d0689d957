"""What else tells how far a partition had come: consumers, producers' results, publishes."""

import json
from collections import defaultdict

from wings_core.repair.catalog import Catalog
from wings_core.repair.salvage import Salvaged

BELIEVED_MAX = 1_000_000_000
"""Messages behind the last page that are believed to have been there: a consumer may have committed
any offset."""


class Evidence:
    """The highest offsets that anything but the index of pages speaks of.

    Args:
        salvaged: What was found of metadata.
        catalog: Its topics.
    """

    def __init__(self, salvaged: Salvaged, catalog: Catalog) -> None:
        self._ends: dict[tuple[object, object], int] = defaultdict(int)
        names = {str(topic.name): topic_id for topic_id, topic in catalog.topics.items()}
        for row in salvaged.rows("consumer_offsets"):
            self._see(row["topic_id"], row["partition"], row["offset"])
        for row in salvaged.rows("producer_results"):
            for each in _parsed(row["committed"]):
                if isinstance(each, dict):
                    self._see(
                        row["topic_id"], each.get("partition"), _after(each.get("end_offset"))
                    )
        for row in salvaged.rows("publishes"):
            for each in _parsed(row["committed"]):
                if isinstance(each, list) and len(each) == 4:
                    self._see(names.get(str(each[0])), each[1], _after(each[3]))

    def end(self, topic_id: int, partition: str, reached: int) -> int:
        """Return an offset that a partition's next one is not below.

        Args:
            topic_id: Of metadata.
            partition: Its value.
            reached: The end of its pages, which is returned where nothing says more.
        """
        said = self._ends[topic_id, partition]
        return said if reached < said <= reached + BELIEVED_MAX else reached

    def _see(self, topic_id: object, partition: object, end: object) -> None:
        if isinstance(end, int):
            key = (topic_id, partition)
            self._ends[key] = max(self._ends[key], end)


def _after(offset: object) -> int | None:
    return offset + 1 if isinstance(offset, int) else None


def _parsed(text: object) -> list[object]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return []
    return found if isinstance(found, list) else []
