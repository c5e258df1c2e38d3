"""Work and precision of stepnet compared with its peers and with C; `python -m benchmarks` runs it."""
