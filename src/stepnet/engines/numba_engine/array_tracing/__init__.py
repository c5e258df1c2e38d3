"""Tracing of long arrays: operations on whole arrays are kept as loops."""
