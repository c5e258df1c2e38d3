"""Solving one problem: `solve`, `solve_ivp`, `start`, and the plan of validated numbers they hand to an engine."""
