"""Storage: the bytes of pages, durable, and rows out of them again."""
