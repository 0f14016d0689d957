"""Object stores: a directory, S3, Google Cloud Storage, Azure, behind one small interface."""

from wings_core.storage.objects.interfaces import ObjectStore, RetryBounds, StoredObject
from wings_core.storage.objects.open import bind_objects, check_url, is_relative, open_objects

__all__ = [
    "ObjectStore",
    "RetryBounds",
    "StoredObject",
    "bind_objects",
    "check_url",
    "is_relative",
    "open_objects",
]
