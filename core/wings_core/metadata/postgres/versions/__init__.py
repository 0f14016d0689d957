"""The numbered migrations, by range."""
