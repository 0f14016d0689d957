"""`wings maintain`: do at once what a server's maintenance has due, topic by topic."""

from typing import Annotated

import typer

from wings_client.cli.endpoint import DEFAULT, EndpointOption, connected_transport, short_name
from wings_core.contracts.actions import Maintain

PASS_SECONDS_MAX = 3_600.0
"""How long one topic may take."""


def maintain(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]…", help="Default: all of the namespace.")
    ] = None,
    *,
    endpoint: EndpointOption = DEFAULT,
) -> None:
    """Drop and move at once what is old enough by the topics' configuration.

    The server does so by itself from time to time. Tells what was done after each topic.

    $ wings maintain flights
    """
    with connected_transport(endpoint) as (client, transport):
        names = topics or [topic.name for topic in client.topics()]
        for name in names:
            body = Maintain(topic=name)
            done = transport.act("maintain", body, repeatable=True, timeout=PASS_SECONDS_MAX)
            line = (
                f"{short_name(name)}: {done['pages_expired']:,} pages dropped, "
                f"{done['pages_merged']:,} merged into {done['segments']:,} segments"
            )
            if done["partitions_busy"]:
                line += f", {done['partitions_busy']:,} partitions left to another node"
            if done["failures"]:
                line += f", {done['failures']:,} partitions failed: see the server's log"
            typer.echo(line)
            if done["failures"]:
                raise typer.Exit(1)
