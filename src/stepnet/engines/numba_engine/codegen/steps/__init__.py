"""Whole steps of schemes, generated around a trace: for one trajectory, and for eight in SIMD lanes."""
