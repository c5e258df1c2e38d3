"""Layer kernels: networks on tiles of samples, forward, along tangents and in reverse."""
