"""Steps of the scheme families on tensors: fixed, adaptive and per-sample steps, events and output."""
