"""Two spirals by levels of depth: a net of 16 steps is trained, refined to 32 steps, trained again, and so on to 128.

Trained directly with the same work, the net of 128 steps is as accurate for some seeds and hardly learns for others;
more iterations help, but not for all seeds.

Weights are constant over each step.  A refined net begins with the same weights, each for two steps of h / 2.  While h
(initially 1.25) is not small, two such steps differ from one step of h, so the loss increases at each refinement and
must be reduced again.  Haber & Ruthotto (2017), arXiv:1705.03341; Chang et al. (2018), arXiv:1710.10348.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from data import swiss_roll

import stepnet as sn
from stepnet import plots, training

matplotlib.use("Agg")
from matplotlib.figure import Figure

STEPS = 16  # of the first level


def objective_of(steps: int, seed: int) -> training.Objective:
    net = sn.nets.antisymmetric(2, 2, 4, steps, length=20.0, opening="augment", seed=seed)
    return training.Objective(net, "cross_entropy", sn.nets.penalties.l2(1e-6), smoothness=5e-4)


def by_levels(train, seed: int, iterations: int, levels: int):
    """The nets of all levels, and their training runs."""
    objective = objective_of(STEPS, seed)
    _, minima = training.multilevel(objective, train, training.LBFGS(iterations), levels=levels)
    nets = [objective.model]
    for found in minima[1:]:
        nets.append(nets[-1].refine())
        nets[-1].put(found.theta)
    return nets, minima


def main(folder: Path, seeds=range(7), iterations: int = 60, levels: int = 4) -> dict[str, float]:
    """Draw; return the median accuracies of the longest net, trained in either way."""
    train, test = swiss_roll()
    depths = [STEPS * 2**level for level in range(levels)]
    reached = np.zeros((len(seeds), levels + 1))
    for row, seed in zip(reached, seeds, strict=True):
        nets, minima = by_levels(train, seed, iterations, levels)
        row[:levels] = [np.mean(np.argmax(net(test.x), axis=1) == test.y) for net in nets]
        work = sum(found.gradients * steps for found, steps in zip(minima, depths, strict=True))
        direct = objective_of(depths[-1], seed)
        training.minimise(direct, train, training.LBFGS(max(1, work // depths[-1])))
        row[-1] = direct.value(direct.model.theta, test)[1]
        print(f"seed {seed}: by levels {', '.join(f'{share:.1%}' for share in row[:-1])}; directly {row[-1]:.1%}")
    middle = np.median(reached, axis=0)
    print(f"medians of the test accuracy at {depths[-1]} steps: by levels {middle[-2]:.1%}, directly {middle[-1]:.1%}")
    with plots.style():
        draw(nets, minima, reached[-1], test, seeds[-1]).savefig(folder / "swiss_roll.png")
    return {"by levels": float(middle[-2]), "directly": float(middle[-1])}


def draw(nets: list, minima: list, shares, test, seed: int) -> Figure:
    """Regions at all levels, points at some depths of the longest net, and the history of the loss."""
    figure = Figure(figsize=(10, 6.7), layout="constrained", dpi=150)
    above, centre, below, foot = figure.subfigures(4, 1, height_ratios=[2.4, 2.35, 1.9, 0.25])
    for axes, net, share in zip(above.subplots(1, len(nets)), nets, shares, strict=False):
        steps = net.design.blocks[0].steps
        plots.regions(net, test.x, test.y, axes, s=3).set_title(f"{steps} steps: {share:.1%} right")
    plots.layers(nets[-1], test.x, test.y, axes=centre.subplots(1, 5), s=4)
    steps = nets[-1].design.blocks[0].steps
    centre.suptitle(f"points on their way through {steps} steps; after the last, in the plane of the outputs")
    axes = plots.history(minima, below.subplots())
    axes.set(title=f"seed {seed}: two steps of h / 2 are another map than one of h, so the loss jumps at refinements")
    axes.set(ylabel="training loss", xlim=(0, None))
    plots.class_legend(foot, ("inner spiral", "outer spiral"), ncols=2, loc="center")
    return figure


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
