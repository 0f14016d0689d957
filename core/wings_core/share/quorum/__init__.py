"""Decisions by a majority of the replicas, as procedures that tell what they wait for."""
