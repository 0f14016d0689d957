"""Ingest: from pushed batches to durable, committed pages."""
