"""Kernels of the scheme families, with step control, events and output inside steps."""
