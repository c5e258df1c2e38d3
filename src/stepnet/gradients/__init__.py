"""Derivatives of solves: exact gradients in a chosen memory, tangents, Hessian products, adjoint equations, events."""
