"""Figures with matplotlib; each function draws into the axes it is given and returns them."""

from stepnet.plots.class_colours import CLASSES, class_legend
from stepnet.plots.networks import graph, graph_positions, history, layers, regions
from stepnet.plots.trajectories import COLOURS, energy_error, orbit, step_sizes, style

__all__ = [
    "CLASSES", "COLOURS", "class_legend", "energy_error", "graph", "graph_positions", "history", "layers", "orbit",
    "regions", "step_sizes", "style",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
