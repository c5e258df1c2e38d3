"""Right-hand sides on tensors."""
