"""Runs on tensors: fixed and adaptive steps, events, batches, and the side state of functions."""
