"""Figures with matplotlib; each function draws into the axes it is given and returns them."""

from stepnet.plots.animations import GIF, LivePlot
from stepnet.plots.class_colours import CLASSES, class_legend
from stepnet.plots.convergence_studies import convergence, work_precision
from stepnet.plots.dynamics import (
    basins,
    bifurcation_diagram,
    lyapunov_map,
    phase_portrait,
    poincare_points,
    trajectory,
)
from stepnet.plots.grids import animate, heat_map
from stepnet.plots.network_stability import gradient_norms, layer_ranges, probabilities, robustness
from stepnet.plots.networks import graph, graph_positions, history, layers, regions
from stepnet.plots.schedules import schedule
from stepnet.plots.stability import (
    mean_square_stability,
    order_star,
    scheme_report,
    spectrum_in_region,
    stability_region,
)
from stepnet.plots.trajectories import COLOURS, energy_error, orbit, step_sizes, style

__all__ = [
    "CLASSES", "COLOURS", "GIF", "LivePlot", "animate", "basins", "bifurcation_diagram", "class_legend",
    "convergence", "energy_error", "gradient_norms", "graph", "graph_positions", "heat_map", "history",
    "layer_ranges", "layers", "lyapunov_map", "mean_square_stability", "orbit", "order_star", "phase_portrait",
    "poincare_points", "probabilities", "regions", "robustness", "schedule", "scheme_report", "spectrum_in_region",
    "stability_region", "step_sizes", "style", "trajectory", "work_precision",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
