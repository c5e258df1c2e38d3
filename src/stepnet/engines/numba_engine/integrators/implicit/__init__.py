"""Implicit steps: Runge-Kutta, Rosenbrock, additive and semi-implicit schemes, variable order, and their systems."""
