"""Figures with matplotlib; each function draws into the axes it is given and returns them."""

from stepnet.plots.animations import GIF, LivePlot
from stepnet.plots.class_colours import CLASSES, class_legend
from stepnet.plots.networks import graph, graph_positions, history, layers, regions
from stepnet.plots.stability import mean_square_stability, order_star, stability_region
from stepnet.plots.trajectories import COLOURS, energy_error, orbit, step_sizes, style

__all__ = [
    "CLASSES", "COLOURS", "GIF", "LivePlot", "class_legend", "energy_error", "graph", "graph_positions", "history",
    "layers", "mean_square_stability", "orbit", "order_star", "regions", "stability_region", "step_sizes", "style",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
