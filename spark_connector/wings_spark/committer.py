"""The committer of a batch: publishes its stages exactly once, or aborts them.

The server remembers each writer's published batches. A repeated publish, after a crash or a lost
response, returns the first result, and the stages of the repetition are deleted.

Tasks that Spark kills or abandons leave stages unknown to the driver, some of them after the
commit. The ids of all stages of a batch therefore share a prefix: the driver deletes the
unpublished stages with that prefix, and a task that finishes later finds the batch published, or
its job closed, and deletes its own stage.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from wings_client import Client
from wings_core.errors import WingsError
from wings_spark.connection import ServerAccess
from wings_spark.worker import prepare_worker


@dataclass(frozen=True, slots=True)
class BatchCommitter:
    """The committer of one batch of one writer, pickled to the tasks and back to the driver."""

    writer: str
    batch: int
    prefix: str
    """Prefix of the ids of all stages of this batch, and of no others."""

    def is_published(self, client: Client) -> bool:
        """Return whether the server has this batch; forgotten old batches count as unpublished.

        Blocks for one call.
        """
        return client.abort(self.writer, (), self.batch).published is True

    def publish(self, server: ServerAccess, stages: Sequence[str]) -> None:
        """Make the stages visible in one transaction, unless this batch was published before.

        Raises:
            PublishFenced: The writer has published a later batch, as after a checkpoint was reset
                to an earlier one.
            StageNotFound: A stage was aborted, or swept after its time limit.
            WingsError: The server rejected the call or could not be reached; a retry is safe.
        """
        prepare_worker()
        with server.connect() as client:
            client.publish(self.writer, self.batch, stages)
            # Published stages are unaffected; this deletes stages of other attempts and of
            # interrupted runs. If it fails, the server sweeps them.
            with contextlib.suppress(WingsError):
                client.abort(self.writer, (), prefix=self.prefix)

    def abort(self, server: ServerAccess) -> None:
        """Delete the unpublished stages of this batch: Spark may abort a committed batch.

        A concurrent publish, its response lost, either finds its stages or fails: the server
        serializes the two.
        """
        with server.connect() as client:
            client.abort(self.writer, (), prefix=self.prefix)

    def close(self, server: ServerAccess) -> None:
        """Publish an empty batch if none was published, so that later tasks find it closed."""
        with server.connect() as client:
            client.publish(self.writer, self.batch, ())
