"""Exact adjoints of runs, and the adjoint equation along an interpolated solution."""
