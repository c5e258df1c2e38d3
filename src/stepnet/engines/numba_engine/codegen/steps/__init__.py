"""Whole steps of schemes, generated around a trace: for one trajectory, and for many in SIMD lanes."""
