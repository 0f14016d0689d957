"""Backups: what a server hands out, where they are kept, and how one becomes a directory again."""
