"""Derivatives of right-hand sides and losses: Jacobians, products with them, pullbacks."""
