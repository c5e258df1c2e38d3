"""Figures of stability: regions and order stars of schemes, spectra in a region, mean-square regions, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np

from stepnet.plots.axes import OPTIONAL_AXES, choose_axes
from stepnet.plots.trajectories import COLOURS
from stepnet.schemes.stability_grids import is_for_oscillators
from stepnet.stability.arguments import any_scheme, deterministic_scheme
from stepnet.stability.jacobian_spectra import JacobianSpectra
from stepnet.stability.mean_square import mean_square_region
from stepnet.stability.regions import Region, region
from stepnet.stability.scheme_report import report
from stepnet.validation import array, check, optional, real, sequence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIGHT = 0.18  # opacity of the inside of a region
LONG = 16  # letters of a label above which three labels do not fit side by side
WINDOW = real("(0, inf)")


@check(axes=OPTIONAL_AXES, reach=optional(WINDOW))
def stability_region(*schemes: Any, axes: Axes | None = None, reach: float | None = None) -> Axes:
    """Draw the stability regions of one or several schemes in the plane of z = h lambda.

    Each region is tinted, and its boundary is a line with the name of the scheme in the legend.  Splitting schemes and
    others for second-order problems have an interval of z = i h omega, drawn as a bar along the imaginary axis.

    Parameters
    ----------
    *schemes : str, scheme, Butcher or Region
        A `Region`, such as that of an IMEX scheme for a given stiff part or of one formula of bdf, is drawn on its
        grid.
    axes : matplotlib Axes, optional
        The current ones by default.
    reach : float, optional
        Show |Re z| and |Im z| up to this number instead of the smallest window with all regions.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from stepnet import plots
    >>> axes = plots.stability_region("euler", "rk4", "verlet", axes=Figure().subplots())
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['euler', 'rk4', 'verlet (h omega)']
    """
    chosen = sequence(_scheme_or_region, least=1)("schemes", schemes)
    axes = choose_axes(axes)
    found = [each if isinstance(each, Region) else region(each, resolution=2) for each in chosen]
    low, high, top = _join_windows(found, reach)
    x, y = np.linspace(low, high, 500), np.linspace(-top, top, 501)
    n_bars = 0
    for k, scheme in enumerate(chosen):
        colour, name = COLOURS[k % len(COLOURS)], found[k].name + found[k].equation.partition("mu y")[2]
        style = ("-", "--", ":")[k // len(COLOURS) % 3]
        if len(found[k].real) == 1:  # an interval of h omega
            limit = float(np.abs(found[k].boundary).max())
            n_bars += 1
            place = low + 0.02 * n_bars * (high - low)
            axes.plot(
                [place] * 2, [-limit, limit], color=colour, lw=3, solid_capstyle="butt", label=f"{name} (h omega)"
            )
            continue
        drawn = scheme if isinstance(scheme, Region) else region(scheme, real=x, imaginary=y)
        grid, size = (drawn.real, drawn.imaginary), drawn.amplification
        if (size <= 1).any():
            axes.contourf(*grid, size, levels=[-1.0, 1.0], colors=[colour], alpha=LIGHT)
            axes.contour(*grid, size, levels=[1.0], colors=[colour], linewidths=1.2, linestyles=style)
            axes.plot([], [], color=colour, lw=1.2, ls=style, label=name)
        else:  # the region is a line
            axes.plot(found[k].boundary.real.T, found[k].boundary.imag.T, color=colour, lw=3, label=name)
    _draw_plane(axes, (low, high), (-top, top))
    _place_legend(axes, len(chosen))
    return axes


def _scheme_or_region(name: str, value: Any) -> Any:
    return value if isinstance(value, Region) else deterministic_scheme(name, value)


@check(scheme=deterministic_scheme, axes=OPTIONAL_AXES, reach=WINDOW)
def order_star(scheme: Any, axes: Axes | None = None, *, reach: float = 6.0) -> Axes:
    """Draw the order star |R(z)| > |exp(z)| of a scheme (dark): a scheme of order p has p + 1 sectors at the origin.

    Parameters
    ----------
    scheme : str, scheme or Butcher
        Not one for second-order problems.
    axes : matplotlib Axes, optional
        The current ones by default.
    reach : float, optional
        Show |Re z| and |Im z| up to this number.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError
        If the test equation of the scheme is q'' = -omega^2 q.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from stepnet import plots
    >>> plots.order_star("rk4", Figure().subplots()).get_title()
    'rk4'
    """
    if is_for_oscillators(scheme):
        raise TypeError(f"`scheme` must be one for y' = f(t, y), found {scheme.name}, which has no R(z)")
    axes, x = choose_axes(axes), np.linspace(-reach, reach, 600)
    found = region(scheme, real=x, imaginary=x)
    axes.contourf(x, x, found.order_star, levels=[1.0, np.inf], colors=[COLOURS[0]], alpha=0.75)
    axes.contour(x, x, found.amplification, levels=[1.0], colors="black", linewidths=0.6, linestyles=":")
    _draw_plane(axes, (-reach, reach), (-reach, reach))
    axes.set_title(found.name)
    return axes


@check(axes=OPTIONAL_AXES)
def mean_square_stability(*schemes: Any, axes: Axes | None = None) -> Axes:
    """Draw mean-square stability regions of stochastic schemes in the plane of h lambda and h mu^2.

    The region of the equation itself, left of 2 lambda + mu^2 = 0 (Ito) or 2 lambda + 2 mu^2 = 0 (Stratonovich), ends
    at a dashed line.

    Parameters
    ----------
    *schemes : str or scheme
    axes : matplotlib Axes, optional
        The current ones by default.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from stepnet import plots
    >>> plots.mean_square_stability("euler_maruyama", "milstein", axes=Figure().subplots()).get_xlabel()
    'h lambda'
    """
    chosen = sequence(any_scheme, least=1)("schemes", schemes)
    axes = choose_axes(axes)
    p, q = np.linspace(-3.0, 0.5, 351), np.linspace(0.0, 3.0, 301)
    calculi = []
    for k, scheme in enumerate(chosen):
        found, colour = mean_square_region(scheme, drift=p, diffusion=q), COLOURS[k % len(COLOURS)]
        axes.contourf(p, q, found.growth, levels=[-1.0, 1.0], colors=[colour], alpha=LIGHT)
        axes.contour(p, q, found.growth, levels=[1.0], colors=[colour], linewidths=1.2)
        axes.plot([], [], color=colour, lw=1.2, label=found.name)
        calculi.append(found.calculus)
    for calculus in dict.fromkeys(calculi):
        slope = 2.0 if calculus == "ito" else 1.0
        axes.plot(
            p, -slope * p, color="black", lw=0.8, ls="--" if calculus == "ito" else ":", label=f"exact, {calculus}"
        )
    axes.set(xlabel="h lambda", ylabel="h mu^2", xlim=(p[0], p[-1]), ylim=(q[0], q[-1]))
    axes.axvline(0, color="grey", lw=0.4)
    _place_legend(axes, len(axes.get_legend_handles_labels()[1]))
    return axes


def _points(name: str, value: Any) -> np.ndarray:
    """Numbers z of the plane, from spectra or an array."""
    if isinstance(value, JacobianSpectra):
        return value.z.ravel()
    found = np.asarray(value)
    if found.dtype.kind == "c":
        return found.ravel()
    return array()(name, value).astype(complex).ravel()


@check(scheme=deterministic_scheme, z=_points, axes=OPTIONAL_AXES)
def spectrum_in_region(scheme: Any, z: Any, axes: Axes | None = None, *, colours: Any = None) -> Axes:
    """Draw points z = h lambda, such as spectra along a solution, in the stability region of a scheme.

    Parameters
    ----------
    scheme : str, scheme or Butcher
        Points of schemes for second-order problems belong on the imaginary axis, z = i h omega.
    z : JacobianSpectra or array_like of complex numbers
    axes : matplotlib Axes, optional
        The current ones by default.
    colours : array_like, optional
        A number for each of the points, such as its time or layer, or one colour for all.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> swing = sn.ODE(lambda t, y: [y[1], -y[0] - 3 * y[1]], [1.0, 0.0], (0.0, 5.0))
    >>> axes = sn.plots.spectrum_in_region("rk4", sn.stability.spectra(swing, "rk4", steps=10))
    """
    axes, finite = choose_axes(axes), np.isfinite(z)
    found = region(scheme, resolution=2)
    x, y = (np.append(each[finite], 0.0) if finite.any() else np.zeros(1) for each in (z.real, z.imag))
    low, high, top = _join_windows([found], None)
    low, high, top = min(low, 1.1 * x.min()), max(high, 1.1 * x.max()), max(top, 1.1 * np.abs(y).max())
    window = np.linspace(low, high, 400), np.linspace(-top, top, 401)
    if is_for_oscillators(scheme):
        limit = float(np.abs(found.boundary).max())
        axes.plot([0, 0], [-limit, limit], color=COLOURS[0], lw=4, alpha=0.4, solid_capstyle="butt", zorder=0)
    else:
        size = region(scheme, real=window[0], imaginary=window[1]).amplification
        axes.contourf(*window, size, levels=[-1.0, 1.0], colors=[COLOURS[0]], alpha=LIGHT)
        axes.contour(*window, size, levels=[1.0], colors=[COLOURS[0]], linewidths=1.0)
    shown: dict[str, Any] = {"color": COLOURS[1]}
    if isinstance(colours, str):
        shown = {"color": colours}
    elif colours is not None:
        shown = {"c": array(z.size)("colours", np.ravel(colours)), "cmap": "viridis"}
    axes.scatter(z.real, z.imag, s=6, lw=0, zorder=3, **shown)
    _draw_plane(axes, (low, high), (-top, top))
    axes.set_title(found.name)
    return axes


@check(scheme=deterministic_scheme)
def scheme_report(scheme: Any, axes: Any = None) -> Any:
    """Draw the report of a scheme: its region, its order star, the growth of a step along both axes, its properties.

    Parameters
    ----------
    scheme : str, scheme or Butcher
    axes : sequence of four matplotlib Axes, optional
        By default in a row of a new figure.

    Returns
    -------
    array of matplotlib Axes

    Examples
    --------
    >>> import stepnet as sn
    >>> [axes.get_title() for axes in sn.plots.scheme_report("rk4")]
    ['stability region', 'order star', '|R| on the axes', 'rk4']
    """
    if axes is None:
        axes = plt.figure(figsize=(13.0, 3.6), layout="constrained").subplots(1, 4)
    axes = np.atleast_1d(np.asarray(axes, object)).ravel()
    if len(axes) != 4:
        raise ValueError(f"`axes` must be four, found {len(axes)}")
    for each in axes:
        OPTIONAL_AXES("axes", each)
    found = report(scheme)
    stability_region(scheme, axes=axes[0])
    if is_for_oscillators(scheme):
        axes[1].axis("off")
    else:
        order_star(scheme, axes[1])
    axes[0].set_title("stability region")
    axes[0].legend().remove()
    axes[1].set_title("order star")
    limits = [x for x in (found.real_limit, found.imaginary_limit) if np.isfinite(x) and x > 0]
    x = np.linspace(0.0, 1.3 * max(limits, default=4.0), 400)
    if not is_for_oscillators(scheme):
        axes[2].plot(x, region(scheme, real=-x[::-1], imaginary=[0.0]).amplification[0, ::-1], label="|R(-x)|")
    axes[2].plot(x, region(scheme, real=[0.0], imaginary=x).amplification[:, 0], label="|R(ix)|")
    axes[2].axhline(1.0, color="grey", lw=0.4)
    axes[2].set(xlabel="x", ylim=(0.0, 2.0), title="|R| on the axes")
    axes[2].legend(fontsize="small")
    axes[3].axis("off")
    lines = [line for line in str(found).splitlines()[1:] if not line.strip().startswith(("reference", "numerator"))]
    axes[3].text(0.0, 1.0, "\n".join(line[:58] for line in lines), family="monospace", fontsize=5.5, va="top")
    axes[3].set_title(found.name)
    return axes


def _join_windows(found: list[Any], reach: float | None) -> tuple[float, float, float]:
    """The window that contains all regions: left, right, top."""
    if reach is not None:
        return -reach, reach, reach
    low, high = min(each.real[0] for each in found), max(each.real[-1] for each in found)
    top = max(each.imaginary[-1] for each in found)
    return (float(min(low, -0.3 * top)), float(max(high, 0.3 * top)), float(top))


def _place_legend(axes: Axes, count: int) -> None:
    """Above the axes, where it covers no region."""
    longest = max((len(label) for label in axes.get_legend_handles_labels()[1]), default=0)
    columns = min(count, 3 if longest <= LONG else 2)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, fontsize="small", borderaxespad=0.2)


def _draw_plane(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    axes.axhline(0, color="grey", lw=0.4)
    axes.axvline(0, color="grey", lw=0.4)
    axes.set(xlabel="Re z", ylabel="Im z", xlim=x, ylim=y, aspect="equal")
