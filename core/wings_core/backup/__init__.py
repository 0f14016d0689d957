"""Backups: taking them from a server, storing them, and restoring them to a directory."""
