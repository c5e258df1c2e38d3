"""Random tensors with the words and uniforms of `stepnet.noise` on any device."""
