"""Replicas of share groups' holds, served over gRPC."""
