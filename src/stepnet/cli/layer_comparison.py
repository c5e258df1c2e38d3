"""The network part of `stepnet demo`: 20 layers with growing, decaying and antisymmetric weights.

The example of Haber & Ruthotto (2017), Inverse Problems 34:014004, in two unknowns: y_(k+1) = y_k + h tanh(K y_k).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepnet.fields import dense, residual
from stepnet.nets.design import Block, Design
from stepnet.nets.net import Net
from stepnet.stability import Certificate, certificate
from stepnet.storage.atomic_files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WEIGHTS = {
    "growing": ((2.0, -2.0), (0.0, 2.0)),
    "decaying": ((-2.0, 0.0), (2.0, -2.0)),
    "antisymmetric": ((0.0, -1.0), (1.0, 0.0)),
}
"""K with the eigenvalues 2, -2 and +-i."""
STARTS = np.array([[0.1, 0.1], [-0.1, -0.1], [0.0, 0.5]])
STEPS, H = 20, 0.1


class LayerRun(NamedTuple):
    """A net, the states of the three inputs (depths, 3, 2), and its certificate."""

    name: str
    net: Net
    states: np.ndarray
    certificate: Certificate


def build_net(K: tuple[tuple[float, ...], ...], h: float = H, steps: int = STEPS) -> Net:
    """Equal residual layers with the matrix K."""
    net = Net(Design((Block(residual(dense(2)), "euler", steps, h * steps),)), workers=1)
    net.weights["blocks.0.K"][...], net.weights["blocks.0.b"][...] = K, 0.0
    return net


def run_nets() -> list[LayerRun]:
    """The three nets."""
    nets = {name: build_net(K) for name, K in WEIGHTS.items()}
    return [LayerRun(name, net, net.features(STARTS), certificate(net, STARTS)) for name, net in nets.items()]


def format_runs(runs: list[LayerRun]) -> str:
    """How norms and distances change in each net, and the sentence of its certificate."""
    head = f"{'weights':<16}{'|y1| end/start':>16}{'|y1 - y2|':>12}{'measured':>10}{'bound':>10}"
    lines = [f"{STEPS} residual layers in two unknowns, h = {H:g}: amplification", head, "-" * len(head)]
    for name, _, states, found in runs:
        grown = np.linalg.norm(states[-1, 0]) / np.linalg.norm(states[0, 0])
        apart = np.linalg.norm(states[-1, 0] - states[-1, 1]) / np.linalg.norm(states[0, 0] - states[0, 1])
        block = found.blocks[0]
        lines.append(f"{name:<16}{grown:>16.3f}{apart:>12.3f}{block.measured:>10.3f}{block.upper:>10.3f}")
    lines += [f"{each.name}: {each.certificate.verdict}" for each in runs]
    return "\n".join(lines)


def find_spectra(run: LayerRun) -> np.ndarray:
    """h times the eigenvalues of the Jacobians diag(1 - tanh(K y)^2) K of all layers at the states of all inputs."""
    K = run.net.weights["blocks.0.K"]
    slopes = 1 - np.tanh(np.einsum("kij,knj->kni", K, run.states[:-1])) ** 2
    return H * np.linalg.eigvals(slopes[..., None] * K[:, None]).ravel()


def draw_figure(runs: list[LayerRun], folder: Path) -> Path:
    """Draw the motion of the inputs and the spectra of the layers in the region of Euler's method; returns the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from stepnet import plots

    folder.mkdir(parents=True, exist_ok=True)
    with plots.style():
        figure = Figure(figsize=(11, 7), layout="constrained")
        axes: Any = figure.subplots(2, len(runs))
        for k, run in enumerate(runs):
            _draw_motion(run, axes[0, k])
            plots.spectrum_in_region("euler", find_spectra(run), axes[1, k])
            axes[1, k].set_title("$h \\lambda$ of all layers in the region of euler")
        figure.suptitle(f"{STEPS} layers $y + h \\tanh(Ky)$, $h = {H:g}$; squares are inputs")
        write_file(folder / "layers.png", partial(figure.savefig, format="png"))
    return folder / "layers.png"


def _draw_motion(run: LayerRun, axes: Axes) -> None:
    """The paths of the three inputs through the layers."""
    for i in range(len(STARTS)):
        (line,) = axes.plot(*run.states[:, i].T, "o-", ms=2.5, lw=0.8, label=f"$y_{i + 1}$")
        axes.plot(*run.states[0, i], "s", ms=5, color=line.get_color())
    block = run.certificate.blocks[0]
    title = f"{run.name}: amplification {block.measured:.3g} (bound {block.upper:.3g})"
    axes.set(title=title, xlabel="$y[0]$", ylabel="$y[1]$")
    axes.set_aspect("equal", adjustable="datalim")
    axes.legend(fontsize=7, loc="best")


def run(folder: Path, echo: Callable[[str], object] = print) -> None:
    """Run the nets, print the table with their certificates and write the figure."""
    found = run_nets()
    echo("\n" + format_runs(found))
    try:
        path = draw_figure(found, folder)
    except ModuleNotFoundError:
        return  # the section on orbits has reported that matplotlib is missing
    echo(f"\nFigure: {path}")
