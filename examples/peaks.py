"""Five bands of height of a surface with hills and hollows, by a Hamiltonian net of 16 steps."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
from data import peaks

import stepnet as sn
from stepnet import plots, training

matplotlib.use("Agg")
from matplotlib.figure import Figure

BANDS = ("lowest fifth of the height", "second", "middle", "fourth", "highest")


def main(folder: Path, seeds=(0, 1, 2), iterations: int = 200, points: int = 1000) -> float:
    """Draw; return the median accuracy."""
    reached, begin = [], time.perf_counter()
    for seed in seeds:
        train, test = peaks(train=points, seed=seed)
        net = sn.nets.hamiltonian(2, 5, 16, 16, length=5.0, seed=seed)
        objective = training.Objective(net, "cross_entropy", sn.nets.penalties.l2(1e-6), smoothness=1e-5)
        run = training.minimise(objective, train, training.LBFGS(iterations))
        reached.append(objective.value(net.theta, test)[1])
    seconds, median = (time.perf_counter() - begin) / len(seeds), float(np.median(reached))
    print(
        f"{len(train)} points to learn, {len(test)} to test: test accuracy {median:.2%}, "
        f"seeds from {min(reached):.2%} to {max(reached):.2%}; {seconds:.0f} s each"
    )

    with plots.style():
        figure = Figure(figsize=(10, 5.9), layout="constrained", dpi=150)
        above, below, foot = figure.subfigures(3, 1, height_ratios=[1.4, 1, 0.1])
        left, right = above.subplots(1, 2, width_ratios=[1, 1.5])
        plots.regions(net, test.x, test.y, left)
        left.set_title(f"{reached[-1]:.1%} right (median of {len(seeds)} seeds {median:.1%})")
        plots.history(run, right).set(title="L-BFGS", ylabel="training loss")
        plots.layers(net, test.x, test.y, axes=below.subplots(1, 5))
        below.suptitle("test points in the plane where they spread most; after the last step, that of the outputs")
        plots.class_legend(foot, BANDS, ncols=5, loc="center")
    figure.savefig(folder / "peaks.png")
    return median


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
