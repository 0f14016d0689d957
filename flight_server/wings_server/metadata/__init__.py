"""The metadata service: `metadata/interfaces.py` of the core over gRPC."""
