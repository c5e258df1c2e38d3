"""Figures with matplotlib; each function draws into the axes it is given and returns them."""

from stepnet.plots.networks import CLASSES, graph, graph_positions, history, layers, regions
from stepnet.plots.trajectories import COLOURS, energy_error, orbit, step_sizes, style

__all__ = [
    "CLASSES", "COLOURS", "energy_error", "graph", "graph_positions", "history", "layers", "orbit", "regions",
    "step_sizes", "style",
]  # fmt: skip
