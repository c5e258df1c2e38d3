"""Tracing: a right-hand side run once on symbols gives a graph of scalar operations."""
