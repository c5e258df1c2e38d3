"""Derivatives of solves: exact gradients, tangents, Hessian products, adjoint equations, events."""
