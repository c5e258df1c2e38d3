"""Tracing: running a right-hand side once on symbols gives a graph of scalar operations."""
