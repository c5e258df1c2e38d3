"""Runs: a job, the driver that executes it in slices, what it saves, and how failures are diagnosed."""
