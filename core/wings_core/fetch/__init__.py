"""Fetch: from a position in the log to batches on their way to the wire."""
