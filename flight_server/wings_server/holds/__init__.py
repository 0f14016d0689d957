"""Replicas of share groups' state (holds), served over gRPC."""
