"""Kernels of the scheme families, step control, event location and step output."""
