"""`wings maintain`: runs due maintenance now, topic by topic."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wings_client.cli.endpoint import connected_transport, short_name
from wings_client.cli.options import DEFAULT, EndpointOption
from wings_client.cli.output import progress_line
from wings_core.contracts.actions import Maintain, TopicBody
from wings_core.errors import InvalidArgument, Unavailable
from wings_core.model.topics import TABLE_AFTER_MS
from wings_core.security.tokens import without_password

if TYPE_CHECKING:
    from wings_core.maintain import MaintenanceReport
    from wings_core.model import Topic
    from wings_core.offline import OfflineLog

PASS_SECONDS_MAX = 3_600.0
"""Longest maintenance of one topic on a server."""


def maintain(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]…", help="Default: all of the namespace.")
    ] = None,
    *,
    endpoint: EndpointOption = DEFAULT,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA_DIR",
            help="Data directory of a stopped server, which this command then maintains itself.",
        ),
    ] = None,
    metadata_url: Annotated[
        str | None,
        typer.Option(
            metavar="postgresql://USER@HOST/DATABASE",
            callback=without_password,
            help="With --data-dir, PostgreSQL for its metadata; put passwords in "
            "WINGS_METADATA_URL or PGPASSWORD, which other users cannot see.",
        ),
    ] = None,
) -> None:
    """Delete expired messages and move old ones now, by the topics' configuration.

    The server also does so periodically. Prints a report after each topic.

    $ wings maintain flights

    $ wings maintain --data-dir ./wings-data
    """
    if data_dir is not None:
        url = metadata_url or os.environ.get("WINGS_METADATA_URL")
        _maintain_stopped(data_dir, url, topics or ())
        return
    if metadata_url is not None:
        raise typer.BadParameter("needs --data-dir", param_hint="--metadata-url")
    with connected_transport(endpoint) as (client, transport):
        names = topics or [topic.name for topic in client.topics()]
        for name in names:
            body, of_topic = Maintain(topic=name), TopicBody(topic=name)
            before = transport.act("describe-topic", of_topic, repeatable=True)
            done = transport.act("maintain", body, repeatable=True, timeout=PASS_SECONDS_MAX)
            if before.get("table") is not None:
                after = transport.act("describe-topic", of_topic, repeatable=True)
                _report_table(name, before, after)
            _report(name, done, "see the server's log")


def _maintain_stopped(data_dir: Path, metadata_url: str | None, names: Sequence[str]) -> None:
    """Maintain the topics of a data directory that no server has open."""
    try:
        from wings_core.offline import open_offline
    except ImportError as error:
        raise InvalidArgument(
            f"--data-dir needs the server: pip install 'wings-flight[server]' ({error})"
        ) from None
    try:
        with open_offline(data_dir, metadata_url) as stopped:
            for topic in stopped.topics(names):
                done = _maintained(stopped, topic)
                _report(str(topic.name), asdict(done), "the reasons are above")
            typer.echo(f"{stopped.reclaim():,} files not in use deleted")
    except Unavailable as error:
        if "pid" not in error.facts:
            raise
        raise Unavailable(
            f"{error.message}: maintain it through that server, without --data-dir", **error.facts
        ) from None


def _maintained(stopped: "OfflineLog", topic: "Topic") -> "MaintenanceReport":
    doing = f"maintaining {short_name(str(topic.name))}"
    with progress_line(doing) as show:
        return stopped.maintain(
            topic,
            lambda report: show(
                f"{doing}: {report.partitions:,} partitions had something due, "
                f"{report.pages_expired:,} pages dropped, {report.pages_merged:,} merged"
            ),
        )


def _report_table(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Print whether maintenance committed a snapshot to a topic's table, and when more is due."""
    table = after["table"]
    line = f"{short_name(name)}: no new snapshot of its table"
    if table["snapshot_id"] != before["table"]["snapshot_id"]:
        line = f"{short_name(name)}: snapshot {table['snapshot_id']} of its table"
    line += f", which has {table['rows']:,} rows"
    if table["lag_rows"]:
        age_ms, after_ms = table["lag_ms"], after["config"]["tier_after_ms"]
        due_ms = (TABLE_AFTER_MS if after_ms is None else after_ms) - age_ms
        when = "now"
        if due_ms > 0:
            due_at = datetime.now(UTC) + timedelta(milliseconds=due_ms)
            when = f"at {due_at:%Y-%m-%dT%H:%M:%SZ}"
        line += (
            f"; {table['lag_rows']:,} are not in it yet: the oldest is {age_ms // 1_000:,} s old, "
            f"and due {when} (tier_after_ms)"
        )
    typer.echo(line)


def _report(name: str, done: Mapping[str, Any], where: str) -> None:
    """Print the report of a topic.

    Raises:
        typer.Exit: Some partitions failed.
    """
    line = (
        f"{short_name(name)}: {done['pages_expired']:,} pages dropped, "
        f"{done['pages_merged']:,} merged into {done['segments']:,} segments"
    )
    if done["partitions_busy"]:
        line += f", {done['partitions_busy']:,} partitions left to another node"
    if done["failures"]:
        line += f", {done['failures']:,} partitions failed: {where}"
    typer.echo(line)
    if done["failures"]:
        raise typer.Exit(1)
