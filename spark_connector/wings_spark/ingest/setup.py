"""Set-up of notifications: Amazon's buckets report new objects to a source's queue."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from wings_core.errors import InvalidArgument
from wings_core.queue.notifications import MessageKind
from wings_spark.ingest.settings import SourceSettings

_URL = re.compile(r"https?://([^/]+)/(\d{12})/([\w-]{1,80}(?:\.fifo)?)")
_HOST_REGION = re.compile(r"^(?:sqs\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.")

EVENTS = ["s3:ObjectCreated:*"]


@dataclass(frozen=True, slots=True)
class Setup:
    """The required configuration of a source's queue and buckets."""

    source: str
    region: str
    account: str
    queue: str
    """The queue's name."""
    url: str
    folders: Mapping[str, Sequence[str]]
    """Prefixes of keys by bucket; an empty prefix is the whole bucket."""

    @classmethod
    def of(cls, settings: SourceSettings) -> Self:
        """Return the set-up of a source.

        Raises:
            InvalidArgument: The queue is not one of SQS that receives notifications of S3, or its
                URL does not contain the account.
        """
        queue = settings.queue
        if queue.kind != "sqs" or queue.message_kind is not MessageKind.S3_EVENTS:
            raise InvalidArgument(
                f"a queue of kind {queue.kind!r} with {queue.message_kind.value!r} needs no "
                "set-up, which is for notifications of S3 that go to SQS"
            )
        found = _URL.fullmatch(queue.url or "")
        if found is None:
            raise InvalidArgument(
                f"{queue.url!r:.200} is no URL of a queue: expected "
                "https://sqs.REGION.amazonaws.com/ACCOUNT/NAME"
            )
        in_host = _HOST_REGION.match(found[1])
        folders: dict[str, list[str]] = {}
        for place in settings.places.prefixes:
            if place.startswith("s3://"):
                bucket, _, folder = place.removeprefix("s3://").partition("/")
                folders.setdefault(bucket, []).append(f"{folder.rstrip('/')}/" if folder else "")
        if not folders:
            raise InvalidArgument("no bucket is among 'files.allowed_prefixes'")
        region = queue.region or (in_host[1] if in_host else "us-east-1")
        return cls(settings.name, region, found[2], found[3], queue.url or "", folders)

    @property
    def arn(self) -> str:
        """The queue's name throughout Amazon."""
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.queue}"

    def statements(self) -> list[dict[str, Any]]:
        """Return the statements of the queue's policy, which allow the buckets to send."""
        return [
            {
                "Sid": f"wings-{self.source}-{bucket}",
                "Effect": "Allow",
                "Principal": {"Service": "s3.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": self.arn,
                "Condition": {
                    "ArnLike": {"aws:SourceArn": f"arn:aws:s3:::{bucket}"},
                    "StringEquals": {"aws:SourceAccount": self.account},
                },
            }
            for bucket in self.folders
        ]

    def notifications(self, bucket: str) -> list[dict[str, Any]]:
        """Return the configurations of a bucket's notifications, one for each folder."""
        found: list[dict[str, Any]] = []
        for index, folder in enumerate(self.folders[bucket]):
            one: dict[str, Any] = {
                "Id": f"wings-{self.source}-{index}",
                "QueueArn": self.arn,
                "Events": EVENTS,
            }
            if folder:
                rules = [{"Name": "prefix", "Value": folder}]
                one["Filter"] = {"Key": {"FilterRules": rules}}
            found.append(one)
        return found

    def commands(self) -> list[str]:
        """Return commands of Amazon's `aws` for the set-up."""
        policy = json.dumps({"Version": "2012-10-17", "Statement": self.statements()})
        attributes = json.dumps({"Policy": policy})
        region = f"--region {self.region}"
        set_attributes = f"aws sqs set-queue-attributes {region} --queue-url {self.url}"
        found = [
            f"aws sqs create-queue {region} --queue-name {self.queue}",
            f"{set_attributes} --attributes {_quoted(attributes)}",
        ]
        for bucket in self.folders:
            configuration = json.dumps({"QueueConfigurations": self.notifications(bucket)})
            found.append(
                f"aws s3api put-bucket-notification-configuration --bucket {bucket} "
                f"--notification-configuration {_quoted(configuration)}"
            )
        return found


def make(setup: Setup, settings: SourceSettings) -> None:
    """Make the set-up: the queue, its policy, and the buckets' notifications; others are kept.

    Raises:
        WingsError: Amazon rejected a request, or cannot be reached; a retry is safe.
    """
    from wings_core.queue.sqs import amazon_client, translated_errors

    sqs = amazon_client("sqs", setup.region, settings.queue.endpoint)
    with translated_errors(f"queue {setup.url}"):
        sqs.create_queue(QueueName=setup.queue)
        answer = sqs.get_queue_attributes(QueueUrl=setup.url, AttributeNames=["Policy"])
        policy = json.loads(answer.get("Attributes", {}).get("Policy") or "{}")
        ours = setup.statements()
        names = {each["Sid"] for each in ours}
        kept = [
            each
            for each in cast("list[dict[str, Any]]", policy.get("Statement", []))
            if each.get("Sid") not in names
        ]
        policy = {"Version": "2012-10-17", **policy, "Statement": kept + ours}
        sqs.set_queue_attributes(QueueUrl=setup.url, Attributes={"Policy": json.dumps(policy)})
    s3 = amazon_client("s3", settings.files.region or setup.region, settings.files.endpoint)
    for bucket in setup.folders:
        with translated_errors(f"bucket {bucket}"):
            found = s3.get_bucket_notification_configuration(Bucket=bucket)
            found.pop("ResponseMetadata", None)
            others = [
                each
                for each in found.get("QueueConfigurations", [])
                if not str(each.get("Id", "")).startswith(f"wings-{setup.source}-")
            ]
            found["QueueConfigurations"] = others + setup.notifications(bucket)
            s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=found)


def _quoted(text: str) -> str:
    """Return a text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"
