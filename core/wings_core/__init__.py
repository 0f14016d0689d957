"""The core of Wings: names and errors, metadata, storage, ingest and fetch."""
