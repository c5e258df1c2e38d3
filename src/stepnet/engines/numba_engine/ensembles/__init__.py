"""Ensembles: members in SIMD lanes, distributed over threads."""
