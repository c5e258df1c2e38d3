"""Exact adjoints of runs, and the interpolated adjoint."""
