"""The contracts on the wire, one per module: frozen models of requests, and responses."""
