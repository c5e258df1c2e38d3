"""Right-hand sides: from a user's function to a C address."""
