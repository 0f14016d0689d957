"""The metadata service: `metadata/interfaces/` of the core over gRPC."""
