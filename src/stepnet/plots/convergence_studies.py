"""Figures of convergence studies and of work and precision, logarithmic in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import NullFormatter

from stepnet.plots.axes import OPTIONAL_AXES, choose_axes
from stepnet.plots.trajectories import COLOURS
from stepnet.stability.convergence import ConvergenceStudy, WorkPrecision
from stepnet.validation import check, instance, one_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^Dv<>"


@check(study=instance(ConvergenceStudy), axes=OPTIONAL_AXES)
def convergence(study: ConvergenceStudy, axes: Axes | None = None) -> Axes:
    """Plot errors over step sizes, with a dashed line of the declared order of each scheme.

    Parameters
    ----------
    study : ConvergenceStudy
    axes : matplotlib Axes, optional
        The current ones by default.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> axes = sn.plots.convergence(sn.stability.convergence_study(problem, ["heun2", "rk4"], steps=(10, 20, 40)))
    """
    axes = choose_axes(axes)
    for k, row in enumerate(study.rows):
        h, errors, colour = study.length / np.array(row.steps), np.array(row.errors), COLOURS[k % len(COLOURS)]
        label = f"{row.scheme}, order {row.observed_order:.2f}"
        axes.loglog(h, errors, f"{MARKERS[k % len(MARKERS)]}-", ms=4, lw=1.0, color=colour, label=label)
        some = np.flatnonzero(np.isfinite(errors) & (errors > 0))
        if len(some):
            axes.loglog(h, errors[some[0]] * (h / h[some[0]]) ** row.order, "--", lw=0.6, color=colour)
    axes.xaxis.set_minor_formatter(NullFormatter())  # labels between powers of ten overlap
    axes.set(xlabel="h", ylabel="relative error at the end")
    axes.legend(fontsize="small")
    return axes


@check(found=instance(WorkPrecision), axes=OPTIONAL_AXES, work=one_of("evaluations", "seconds"))
def work_precision(found: WorkPrecision, axes: Axes | None = None, *, work: str = "evaluations") -> Axes:
    """Plot the work of schemes over the errors that they reach.

    Parameters
    ----------
    found : WorkPrecision
    axes : matplotlib Axes, optional
        The current ones by default.
    work : {"evaluations", "seconds"}, optional
        What counts as work.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    >>> axes = sn.plots.work_precision(sn.stability.work_precision(problem, ["dopri5", "tsit5"]), work="seconds")
    """
    axes = choose_axes(axes)
    for k, row in enumerate(found.rows):
        style = f"{MARKERS[k % len(MARKERS)]}-"
        axes.loglog(row.errors, getattr(row, work), style, ms=4, lw=1.0, color=COLOURS[k % len(COLOURS)],
                    label=row.scheme)  # fmt: skip
    axes.invert_xaxis()
    axes.set(xlabel="relative error at the end", ylabel=work)
    axes.legend(fontsize="small")
    return axes
