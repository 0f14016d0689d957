"""Metadata: topics by name, and the log's index of offsets."""
