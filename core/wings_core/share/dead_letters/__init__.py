"""Dead letters: written before the tombstone of what a group rejects, and redriven."""
