"""Replicas of holds in other processes, over gRPC."""
