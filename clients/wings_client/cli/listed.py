"""Lines of the help of `wings` about the commands of Wings, so that it imports none of them."""

from typing import NamedTuple

PANELS = ("Data", "Queue", "Admin", "Operate")
"""Panels of the help, in order; commands of other packages come after them."""


class Listed(NamedTuple):
    """A line of the help."""

    panel: str
    help: str
    """The first paragraph of the command's own help."""


LISTED = {
    "consume": Listed(
        "Data",
        "Show the messages of a topic as they arrive, resuming where the last run ended.",
    ),
    "export": Listed(
        "Data", "Write a topic's messages to a file of Parquet, Arrow, CSV or JSON lines."
    ),
    "fetch": Listed(
        "Data", "Fetch messages of one or all partitions, waiting if there are too few."
    ),
    "gather": Listed(
        "Data",
        "Send one request to many partitions, topics or servers, and show replies as they arrive.",
    ),
    "ingest": Listed(
        "Data",
        "Turn files that a queue announces into messages, each exactly once, on Spark.",
    ),
    "push": Listed("Data", "Push the rows of files to a topic, each file whole or not at all."),
    "sql": Listed(
        "Data",
        "Run one SQL statement over topics, which are its tables; without one, a shell for many.",
    ),
    "tail": Listed("Data", "Show the messages of all partitions of a topic as they arrive."),
    "share": Listed("Queue", "Share a topic among workers, as a queue."),
    "consumer": Listed(
        "Admin", "Look at named consumers: how far each is behind, groups included."
    ),
    "group": Listed("Admin", "Look at consumer groups, and reset them."),
    "namespace": Listed("Admin", "Look at namespaces."),
    "token": Listed("Admin", "Create, alter, list and revoke the tokens that callers present."),
    "topic": Listed("Admin", "Create, list, describe, alter and delete topics."),
    "backup": Listed(
        "Operate",
        "Take a backup of a running server: `wings backup DEST`; list, verify and prune backups.",
    ),
    "bench": Listed(
        "Operate",
        "Measure a running server from here: throughput, and latency of single messages.",
    ),
    "cert": Listed("Operate", "Certificates for trying TLS."),
    "check": Listed(
        "Operate", "Read every message of a log and report what is damaged or missing."
    ),
    "holds": Listed("Operate", "Replicas of the state of share groups."),
    "maintain": Listed(
        "Operate",
        "Delete expired messages and move old ones now, by the topics' configuration.",
    ),
    "metadata": Listed("Operate", "The metadata of several nodes, as a service."),
    "node": Listed("Operate", "Look at nodes."),
    "profile": Listed(
        "Operate", "Look at the profiles: named connections in `~/.config/wings.toml`."
    ),
    "repair": Listed(
        "Operate",
        "Rebuild a damaged data directory as a new one, as far as possible; list the losses.",
    ),
    "restore": Listed(
        "Operate",
        "Create a data directory from a backup; `wings serve --data-dir DIR` then serves it.",
    ),
    "serve": Listed(
        "Operate",
        "Serve a data directory over Arrow Flight and HTTP until SIGTERM or Ctrl-C.",
    ),
    "status": Listed(
        "Operate",
        "Show a server's version, your rights, its nodes and disk, and what needs you.",
    ),
}
"""The commands of Wings, by name."""
