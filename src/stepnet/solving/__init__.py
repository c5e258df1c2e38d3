"""Solving one problem: `solve`, `solve_ivp`, `start`, and the validated plan that an engine executes."""
