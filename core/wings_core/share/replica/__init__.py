"""Replicas of holds: what each keeps in memory, and what is durable."""
