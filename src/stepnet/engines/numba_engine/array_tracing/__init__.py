"""Tracing of long arrays: whole-array operations are kept as loops."""
