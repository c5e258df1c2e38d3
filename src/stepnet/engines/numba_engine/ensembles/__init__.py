"""Ensembles: members in SIMD lanes and over threads."""
