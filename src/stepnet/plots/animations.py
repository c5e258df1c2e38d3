"""Trackers that draw the states of a run: while it runs, or as a GIF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import PillowWriter

from stepnet.plots.axes import OPTIONAL_AXES, choose_axes
from stepnet.storage.atomic_files import validate_path
from stepnet.validation import check, numbers, optional, real, whole


@check(axes=OPTIONAL_AXES, component=optional(whole(0)), pause=real("[0, inf)"))
class LivePlot:
    """Draws each state of a run as a curve or an image; a tracker for `track`.

    Parameters
    ----------
    axes : Axes, optional
        Where to draw; new ones by default.
    component : int, optional
        Which entry of the first axis of the state to draw, for a state of several fields.
    pause : float
        Seconds for which the window is shown after each state.

    Examples
    --------
    >>> import numpy as np
    >>> import stepnet as sn
    >>> heat = sn.equations.heat(sn.operators.Grid(16), np.arange(16.0), (0.0, 0.001))
    >>> plot = sn.plots.LivePlot(pause=0.0)
    >>> sn.track(heat, "rk4", [plot], steps=4).is_finished, plot.axes.get_title()
    (True, 't = 0.001')
    """

    def __init__(self, axes: Any = None, component: int | None = None, pause: float = 0.001) -> None:
        self.axes, self.component, self.pause = choose_axes(axes), component, pause
        self._drawn: Any = None

    @check(t=real(), y=numbers)
    def take(self, t: float, y: np.ndarray) -> None:
        """Draw a state."""
        u = np.real(y if self.component is None else y[self.component])
        if not u.size:
            raise ValueError(f"a state `y` to draw must have entries, found the shape {u.shape}")
        if u.ndim not in (1, 2):
            raise ValueError(f"a state to draw must have one or two axes, found {u.shape}; give `component`")
        if u.ndim == 1:
            self._draw_curve(u)
        else:
            self._draw_image(u)
        self.axes.set_title(f"t = {t:.4g}")
        self.axes.figure.canvas.draw_idle()
        if self.pause > 0.0:
            plt.pause(self.pause)

    def _draw_curve(self, u: np.ndarray) -> None:
        if self._drawn is None:
            (self._drawn,) = self.axes.plot(u)
        self._drawn.set_ydata(u)
        self.axes.relim()
        self.axes.autoscale_view()

    def _draw_image(self, u: np.ndarray) -> None:
        if self._drawn is None:
            self._drawn = self.axes.imshow(u.T, origin="lower", cmap="viridis")
        self._drawn.set_data(u.T)
        self._drawn.set_clim(float(u.min()), float(u.max()))

    def close(self) -> None:
        """Leave the figure as it is."""


@check(component=optional(whole(0)), frames_per_second=whole(1, 100))
class GIF:
    """Writes the states of a run as the frames of an animated GIF; a tracker for `track`.

    Parameters
    ----------
    path : path
        The file, ending in .gif.
    component : int, optional
        As in `LivePlot`.
    frames_per_second : int
        The speed of the animation.

    Examples
    --------
    >>> import tempfile, numpy as np, stepnet as sn
    >>> path = tempfile.mkdtemp() + "/heat.gif"
    >>> heat = sn.equations.heat(sn.operators.Grid(16), np.arange(16.0), (0.0, 0.001))
    >>> sn.track(heat, "rk4", [sn.plots.GIF(path)], steps=4, every=2).is_finished
    True
    """

    def __init__(self, path: Any, component: int | None = None, frames_per_second: int = 20) -> None:
        self.path = Path(validate_path("path", path))
        if self.path.suffix != ".gif":
            raise ValueError(f"`path` must end in .gif, found {str(self.path)!r}")
        self.component, self._writer = component, PillowWriter(fps=frames_per_second)
        self._plot: LivePlot | None = None

    @check(t=real(), y=numbers)
    def take(self, t: float, y: np.ndarray) -> None:
        """Add a frame."""
        if self._plot is None:
            figure, axes = plt.subplots(figsize=(4, 4), layout="constrained")
            self._plot = LivePlot(axes, self.component, pause=0.0)
            self._writer.setup(figure, self.path, dpi=100)
        self._plot.take(t, y)
        self._writer.grab_frame()

    def close(self) -> None:
        """Write the file."""
        if self._plot is not None:
            self._writer.finish()
            plt.close(self._plot.axes.figure)  # type: ignore[arg-type]
            self._plot = None
