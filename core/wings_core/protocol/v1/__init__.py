"""Package `wings.v1`: the metadata service."""
