"""Ledger: what a writer has published, which the server keeps, and how it is added to.

A batch of a writer is published once. Whoever repeats it, after a crash or an answer that was lost,
gets the first result; what was staged for the repetition is deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import wings_client
from wings_client import Client


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch of one writer, which is published once."""

    writer: str
    batch: int

    def is_published(self, client: Client) -> bool:
        """Ask the server; a batch that is too old to be remembered counts as not published."""
        return client.abort(self.writer, (), self.batch).published is True

    def publish(self, endpoint: str, stages: Sequence[str]) -> None:
        """Make the stages visible, all at once, if this batch was not published before.

        Raises:
            PublishFenced: The writer has published a later batch, as after a checkpoint was set
                back.
            StageNotFound: A stage is gone: it was aborted, or swept as it was left for too long.
            WingsError: The server refused or could not be reached; the same again is safe.
        """
        with wings_client.connect(endpoint) as client:
            if client.publish(self.writer, self.batch, stages).replayed and stages:
                # Those that the first publish took are out of reach; the others nobody wants.
                client.abort(self.writer, stages)

    def abort(self, endpoint: str, stages: Sequence[str]) -> None:
        """Delete the stages, but for what was published: Spark may abort what it has committed.

        A publish that is still under way, its answer lost, finds its stages or finds them gone:
        one transaction of the server decides.
        """
        if stages:
            with wings_client.connect(endpoint) as client:
                client.abort(self.writer, stages, self.batch)
