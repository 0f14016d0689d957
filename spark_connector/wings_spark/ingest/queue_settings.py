"""The settings of a source's queue, `[queue]`."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from wings_core.contracts.messages import problem_of
from wings_core.durations import DURATION
from wings_core.queue.notifications import MessageKind

Column = Annotated[str, Field(min_length=1, max_length=255)]

_QUEUE_KEYS = {
    "sqlite": (("path",), ()),
    "directory": (("path",), ("state",)),
    "s3-listing": (("url",), ("state",)),
    "sqs": (("url",), ("region", "endpoint")),
    "pubsub": (("subscription",), ()),
    "azure": (("url",), ()),
    "share": (("topic", "group"), ("column", "endpoint", "token_file")),
}
"""Required and optional keys by kind of queue."""

_EVENTS = {
    "sqs": MessageKind.S3_EVENTS,
    "pubsub": MessageKind.GCS_EVENTS,
    "azure": MessageKind.AZURE_EVENTS,
}
"""Default format of messages by kind of queue."""

WITHOUT_PLACE = ("sqs", "pubsub", "azure", "share")
"""Kinds of queues that have no directory of their own."""

_LISTED = ("directory", "s3-listing")
"""Kinds of queues that find files themselves."""

_OF_KINDS = {key for keys in _QUEUE_KEYS.values() for part in keys for key in part}


class SettingsSection(BaseModel):
    """A section of a source's TOML: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class QueueSettings(SettingsSection):
    """The queue of a source's messages."""

    kind: Literal["sqlite", "directory", "s3-listing", "sqs", "pubsub", "azure", "share"]
    path: Path | None = None
    """Path of a SQLite queue's file, or of the watched directory."""
    state: Path | None = None
    """File of the queue's state. Absent: for a directory, `.wings/queue.sqlite` in it; for a listed
    bucket, `listing.sqlite` in the checkpoint."""
    url: str | None = None
    """URL of a queue of SQS or Azure, or of a listed bucket: `s3://BUCKET/FOLDER`."""
    subscription: str | None = None
    """Subscription of Pub/Sub: `projects/PROJECT/subscriptions/NAME`."""
    list_seconds: Annotated[float, DURATION, Field(ge=1, le=86_400)] = 60.0
    """Least time between the beginnings of two listings."""
    region: str | None = None
    endpoint: str | None = None
    """Endpoint of another service that speaks SQS, or of a share group's server other than the
    target's."""
    token_file: Path | None = None
    """File with the token for the server of `endpoint`."""
    topic: str | None = None
    group: str | None = None
    """An existing share group of the topic."""
    column: Column | None = None
    """The topic's string column with the messages; absent: `body`."""
    messages: MessageKind | None = None
    """The messages' format; absent: notifications of the cloud whose queue it is, else URIs."""
    visibility_seconds: Annotated[float, DURATION, Field(ge=1, le=43_200)] = 60.0
    wait_seconds: Annotated[float, DURATION, Field(ge=0, le=20)] = 1.0

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        needed, optional = _QUEUE_KEYS[self.kind]
        for key in sorted({*needed, *_OF_KINDS}):
            is_given = getattr(self, key) is not None
            if key in needed and not is_given:
                raise problem_of(f"a queue of kind {self.kind!r} needs the key {key!r}")
            if is_given and key not in {*needed, *optional}:
                raise problem_of(f"a queue of kind {self.kind!r} has no key {key!r}")
        if self.kind in _LISTED and self.message_kind is not MessageKind.URIS:
            raise problem_of(f"the messages of a queue of kind {self.kind!r} are 'uris'")
        if self.kind == "s3-listing" and not str(self.url).startswith("s3://"):
            raise problem_of(f"'url' must be s3://BUCKET/FOLDER, not {self.url!r:.80}")
        return self

    @property
    def message_kind(self) -> MessageKind:
        """The messages' format."""
        if self.messages is not None:
            return self.messages
        return _EVENTS.get(self.kind, MessageKind.URIS)
