"""The rows of leased ranges, as members get them."""
