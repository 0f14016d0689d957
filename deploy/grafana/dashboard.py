"""Writes the Grafana dashboard: `python deploy/grafana/dashboard.py > deploy/grafana/wings.json`.

Panels are rows of this table; Grafana's JSON is made of them. A test compares the file with what
this writes, and looks every metric up in a real server's.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

WIDTH, HEIGHT = 8, 7
"""Of a panel; a row of the dashboard is 24 wide."""

ALL = 'instance=~"$instance"'
"""Which servers: the variable of the dashboard."""

RATE = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart."""

    title: str
    unit: str
    """Grafana's name of it."""
    queries: tuple[tuple[str, str], ...]
    """Each with its legend."""


def rate(metric: str, by: str) -> str:
    """Return the query of how fast a counter grows, by labels."""
    return f"sum by ({by}) (rate({metric}{{{ALL}}}[{RATE}]))"


def latest(metric: str, by: str) -> str:
    """Return the query of a gauge that all nodes tell alike."""
    return f"max by ({by}) ({metric}{{{ALL}}})"


def flushes(quantile: float) -> str:
    """Return the query of a quantile of the time that commits take."""
    metric = rate("wings_flush_duration_seconds_bucket", "le")
    return f"histogram_quantile({quantile}, {metric})"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Traffic": (
        Panel(
            "Rows in", "rowsps", ((rate("wings_push_rows_total", "transport"), "{{transport}}"),)
        ),
        Panel(
            "Rows out", "rowsps", ((rate("wings_fetch_rows_total", "transport"), "{{transport}}"),)
        ),
        Panel(
            "Bytes",
            "Bps",
            (
                (rate("wings_push_bytes_total", "instance"), "in {{instance}}"),
                (rate("wings_fetch_bytes_total", "instance"), "out {{instance}}"),
            ),
        ),
        Panel("Errors answered", "ops", ((rate("wings_errors_total", "code"), "{{code}}"),)),
        Panel(
            "Readers that wait",
            "short",
            ((f"sum by (instance) (wings_waiting_readers{{{ALL}}})", "{{instance}}"),),
        ),
        Panel(
            "SQL queries",
            "short",
            ((f"sum by (instance) (wings_sql_queries{{{ALL}}})", "{{instance}}"),),
        ),
    ),
    "Commits": (
        Panel(
            "Time of a commit",
            "s",
            ((flushes(0.5), "half"), (flushes(0.99), "99 of 100")),
        ),
        Panel(
            "Commits and the batches in them",
            "ops",
            (
                (rate("wings_flushes_total", "instance"), "commits {{instance}}"),
                (rate("wings_flush_batches_total", "instance"), "batches {{instance}}"),
            ),
        ),
        Panel(
            "Bytes not committed yet",
            "bytes",
            (
                (f"sum by (instance) (wings_pending_bytes{{{ALL}}})", "pending {{instance}}"),
                (f"sum by (instance) (wings_inline_bytes{{{ALL}}})", "in metadata {{instance}}"),
            ),
        ),
    ),
    "Topics": (
        Panel(
            "Messages by topic, the ten largest",
            "short",
            (
                (
                    f"topk(10, sum by (topic) ({latest('wings_tier_rows', 'tier, topic')}))",
                    "{{topic}}",
                ),
            ),
        ),
        Panel(
            "Bytes by topic, the ten largest",
            "bytes",
            (
                (
                    f"topk(10, sum by (topic) ({latest('wings_tier_bytes', 'tier, topic')}))",
                    "{{topic}}",
                ),
            ),
        ),
        Panel(
            "Partitions by topic, the ten with most",
            "short",
            ((f"topk(10, {latest('wings_topic_partitions', 'topic')})", "{{topic}}"),),
        ),
    ),
    "Consumers and share groups": (
        Panel(
            "Lag of consumers, the ten furthest behind",
            "short",
            (
                (
                    (
                        "topk(10, sum by (consumer, topic) "
                        f"({latest('wings_consumer_lag_messages', 'consumer, topic, partition')}))"
                    ),
                    "{{consumer}} {{topic}}",
                ),
            ),
        ),
        Panel(
            "Lag of share groups, the ten furthest behind",
            "short",
            (
                (
                    f"topk(10, {latest('wings_share_lag_messages', 'group, topic')})",
                    "{{group}} {{topic}}",
                ),
            ),
        ),
        Panel(
            "Messages that members hold",
            "short",
            (
                (
                    f"topk(10, {latest('wings_share_in_flight_messages', 'group, topic')})",
                    "{{group}} {{topic}}",
                ),
            ),
        ),
        Panel(
            "Messages delivered and accepted",
            "ops",
            (
                (rate("wings_share_delivered_messages_total", "group"), "delivered {{group}}"),
                (rate("wings_share_accepted_messages_total", "group"), "accepted {{group}}"),
            ),
        ),
        Panel(
            "Dead letters",
            "ops",
            (
                (
                    rate("wings_share_dead_lettered_messages_total", "group, topic"),
                    "{{group}} {{topic}}",
                ),
            ),
        ),
        Panel(
            "How far tables are behind",
            "s",
            ((latest("wings_table_lag_seconds", "table"), "{{table}}"),),
        ),
    ),
    "Storage": (
        Panel(
            "Requests to object stores",
            "ops",
            ((rate("wings_object_requests_total", "store, operation"), "{{store}} {{operation}}"),),
        ),
        Panel(
            "Requests that failed",
            "ops",
            ((rate("wings_object_failures_total", "store, operation"), "{{store}} {{operation}}"),),
        ),
        Panel(
            "Time of a request",
            "s",
            (
                (
                    (
                        f"{rate('wings_object_seconds_total', 'store, operation')} / "
                        f"{rate('wings_object_requests_total', 'store, operation')}"
                    ),
                    "{{store}} {{operation}}",
                ),
            ),
        ),
        Panel(
            "Pages found in the cache",
            "percentunit",
            (
                (
                    (
                        f"{rate('wings_page_cache_hits_total', 'instance')} / ("
                        f"{rate('wings_page_cache_hits_total', 'instance')} + "
                        f"{rate('wings_page_cache_misses_total', 'instance')})"
                    ),
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "What maintenance merges and drops",
            "Bps",
            (
                (rate("wings_maintenance_merged_bytes_total", "instance"), "merged {{instance}}"),
                (rate("wings_maintenance_expired_bytes_total", "instance"), "dropped {{instance}}"),
            ),
        ),
        Panel(
            "Free on the disk",
            "bytes",
            ((f"min by (instance) (wings_disk_free_bytes{{{ALL}}})", "{{instance}}"),),
        ),
    ),
    "Machines": (
        Panel(
            "CPU", "percentunit", ((rate("process_cpu_seconds_total", "instance"), "{{instance}}"),)
        ),
        Panel(
            "Memory",
            "bytes",
            (
                (f"sum by (instance) (process_resident_memory_bytes{{{ALL}}})", "all {{instance}}"),
                (f"sum by (instance) (wings_memory_held_bytes{{{ALL}}})", "requests {{instance}}"),
            ),
        ),
        Panel(
            "Versions",
            "short",
            ((f"count by (version) (wings_build_info{{{ALL}}})", "{{version}}"),),
        ),
    ),
}


def dashboard() -> Json:
    """Return the dashboard, as Grafana imports it."""
    return {
        "title": "Wings",
        "uid": "wings",
        "tags": ["wings"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[Json]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    yield {
        "name": "instance",
        "type": "query",
        "label": "Server",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": "label_values(wings_build_info, instance)",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
    }


def _panels() -> Iterator[Json]:
    number, top = 0, 0
    for title, panels in ROWS.items():
        number += 1
        place = {"h": 1, "w": 24, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            left = WIDTH * index % 24
            place = {"h": HEIGHT, "w": WIDTH, "x": left, "y": top}
            yield {"id": number, "gridPos": place, **_chart(panel)}
            if left + WIDTH == 24 or index == len(panels) - 1:
                top += HEIGHT


def _chart(panel: Panel) -> Json:
    source = {"type": "prometheus", "uid": "$datasource"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": "ABCDEFGH"[index],
                "datasource": source,
                "expr": query,
                "legendFormat": legend,
            }
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=2)
    sys.stdout.write("\n")
