"""Two moons by three optimisers: Adam on mini-batches, and L-BFGS and Gauss-Newton on all points."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
from data import moons

from stepnet import plots, training
from stepnet.estimators import NetClassifier

matplotlib.use("Agg")
from matplotlib.figure import Figure


def optimisers(rounds: int) -> dict:
    return {
        "Adam": training.Adam(0.01),
        "L-BFGS": training.LBFGS(2 * rounds),
        "Gauss-Newton": training.GaussNewton(rounds // 2, cg_iterations=10, control=training.TrustRegion()),
    }


def main(folder: Path, seeds=(0, 1, 2), rounds: int = 50) -> dict[str, float]:
    """Draw; return the median accuracy with each optimiser."""
    medians = {}
    with plots.style():
        figure = Figure(figsize=(9, 4.5), layout="constrained", dpi=150)
        above, below = figure.subplots(2, 3, sharey="row")
        for top, bottom, (name, optimiser) in zip(above, below, optimisers(rounds).items(), strict=True):
            reached, begin = [], time.perf_counter()
            for seed in seeds:
                train, test = moons(seed=seed)
                model = NetClassifier(
                    "hamiltonian", width=8, steps=8, length=4.0, optimiser=optimiser, epochs=rounds, random_state=seed
                )
                model.fit(train.x, train.y)
                reached.append(model.score(test.x, test.y))
            seconds = (time.perf_counter() - begin) / len(seeds)
            medians[name] = float(np.median(reached))
            print(f"{name:<13} test accuracy {medians[name]:.2%} (400 points), {seconds:.1f} s")
            plots.regions(model.predict, test.x, test.y, top)
            top.set_title(f"{name}: {reached[-1]:.1%} right\n(median of {len(seeds)} seeds {medians[name]:.1%})")
            plots.history(model.run_, bottom).label_outer(remove_inner_ticks=False)
        below[0].set_ylabel("training loss")
        plots.class_legend(figure, ("upper moon", "lower moon"), ncols=2, loc="outside lower center")
    figure.savefig(folder / "moons.png")
    return medians


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
