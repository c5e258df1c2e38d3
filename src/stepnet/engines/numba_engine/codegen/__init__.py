"""Code generation: machine code from graphs, kernels and their cache, and all use of Numba's internals."""
