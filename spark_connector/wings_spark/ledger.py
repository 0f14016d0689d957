"""Ledger: what a writer has published, which the server keeps, and how it is added to.

A batch of a writer is published once. Whoever repeats it, after a crash or an answer that was lost,
gets the first result; what was staged for the repetition is deleted.

Tasks that Spark kills, or gives up on, stage rows that nobody tells the driver of, and may do so
after the driver is done. So the ids of a batch's stages begin alike: the driver deletes what is
there under them besides what it published, and a task that comes later finds the batch published,
or the job ended, and deletes its own.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import wings_client
from wings_client import Client
from wings_core.errors import WingsError
from wings_spark.worker import prepare_worker


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch of one writer, which is published once."""

    writer: str
    batch: int
    prefix: str
    """What the ids of the stages begin with that are made for this batch, and no others."""

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
        prepare_worker()
        with wings_client.connect(endpoint) as client:
            client.publish(self.writer, self.batch, stages)
            # Those that this publish took, or the first one, are out of reach; the others, of other
            # attempts and of runs that ended in the middle, nobody wants. Else they are swept.
            with contextlib.suppress(WingsError):
                client.abort(self.writer, (), prefix=self.prefix)

    def abort(self, endpoint: str) -> None:
        """Delete all stages, but for what was published: Spark may abort what it has committed.

        A publish that is still under way, its answer lost, finds its stages or finds them gone:
        one transaction of the server decides.
        """
        with wings_client.connect(endpoint) as client:
            client.abort(self.writer, (), prefix=self.prefix)

    def close(self, endpoint: str) -> None:
        """Publish nothing, if nothing was published, so that no task goes on with this batch."""
        with wings_client.connect(endpoint) as client:
            client.publish(self.writer, self.batch, ())
