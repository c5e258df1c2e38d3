"""Operators of PDEs on tensors."""
