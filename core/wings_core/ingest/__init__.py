"""Ingest: turns pushed batches into durable, committed pages."""
