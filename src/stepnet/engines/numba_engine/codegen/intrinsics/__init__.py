"""Functions for compiled code whose instructions are written here: calls by address, activations, work on tiles."""
