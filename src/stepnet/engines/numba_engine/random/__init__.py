"""Random numbers inside kernels, bit-identical to `stepnet.noise`."""
