"""Consumer groups: members that share the partitions of topics, each read by one at a time."""
