"""Figures with matplotlib; each function draws into the axes it is given and returns them."""

from stepnet.plots.trajectories import energy_error, orbit, step_sizes, style

__all__ = ["energy_error", "orbit", "step_sizes", "style"]
