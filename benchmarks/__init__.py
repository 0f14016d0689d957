"""Benchmarks: every figure as a ratio against a baseline measured in the same run."""
