"""Layers of networks on tensors."""
