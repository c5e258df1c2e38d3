"""Runs: a job, the driver that executes it in slices, what it saves, and the diagnosis of failures."""
