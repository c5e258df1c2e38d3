"""Layer kernels: networks on tiles of samples: forward, tangents and reverse."""
