"""Work and precision of stepnet beside its peers and beside C; `python -m benchmarks` runs it."""
