"""Exact gradients of runs on tensors."""
