"""Right-hand sides: from the user's function to a C address."""
