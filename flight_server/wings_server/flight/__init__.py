"""Arrow Flight: the service and its handlers, thin over the core."""
