"""Classes of nodes from a few known ones, by message passing: random communities, and a karate club.

Five members of each of three communities are known, and every node has weakly informative features.  In the club
(Zachary 1977) only the instructor and the president are known: their features identify them, and those of all others
are zero, so information reaches them only along friendships.  The dynamics are residual; Hamiltonian and parabolic
dynamics were less accurate with so few known nodes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from data import block_model, karate_club
from scipy.special import expit

import stepnet as sn
from stepnet import plots, training

matplotlib.use("Agg")
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

LEADERS = np.array([0, 33])


def learnt(adjacency, inputs, labels, known, iterations: int, seed: int, length: float = 2.0):
    """A net trained on the labels of some nodes, and its accuracy on the others."""
    net = sn.nets.node_net(adjacency, inputs.shape[1], labels.max() + 1, 8, 6, length=length, seed=seed)
    model = sn.nets.NodeModel(net, inputs)
    objective = training.Objective(model, "cross_entropy", sn.nets.penalties.l2(1e-3), smoothness=1e-3)
    training.minimise(objective, training.Data(known, labels[known]), training.LBFGS(iterations))
    others = np.setdiff1d(np.arange(len(labels)), known)
    return model, objective.value(model.theta, training.Data(others, labels[others]))[1]


class Communities(NamedTuple):
    """A graph with its communities, the nodes whose community is known, the net, and accuracies on the others."""

    adjacency: np.ndarray
    labels: np.ndarray
    known: np.ndarray
    model: sn.nets.NodeModel
    accuracy: float
    without_edges: float


def communities(iterations: int, seed: int) -> Communities:
    adjacency, labels = block_model(seed=seed)
    random = np.random.default_rng(seed)
    angle = 2 * np.pi * labels / 3
    inputs = np.stack((np.cos(angle), np.sin(angle)), axis=1) + random.normal(size=(len(labels), 2))
    known = np.concatenate([random.permutation(np.flatnonzero(labels == k))[:5] for k in range(3)])
    _, alone = learnt(np.eye(len(labels)), inputs, labels, known, iterations, seed)
    model, accuracy = learnt(adjacency, inputs, labels, known, iterations, seed)
    return Communities(adjacency, labels, known, model, accuracy, alone)


def club(iterations: int, seed: int):
    """A net trained on the two leaders of the club, and its accuracy on the others."""
    adjacency, labels = karate_club()
    return learnt(adjacency, np.eye(34)[:, LEADERS], labels, LEADERS, iterations, seed, length=4.0)


def opinions(model) -> np.ndarray:
    """The readout applied at every depth: the probability of the president's side, (depths, nodes)."""
    W, b = model.net.weights["readout.W"][0], model.net.weights["readout.b"]
    return expit(model.features(np.arange(34)) @ (W[1] - W[0]) + (b[1] - b[0]))


def main(folder: Path, seeds=(0, 1, 2), iterations: int = 40) -> dict[str, float]:
    """Draw; return the median accuracies on the nodes whose class was not given."""
    found = [communities(iterations, seed) for seed in seeds]
    clubs = [club(iterations, seed) for seed in seeds]
    medians = {
        "communities": float(np.median([each.accuracy for each in found])),
        "without edges": float(np.median([each.without_edges for each in found])),
        "club": float(np.median([share for _, share in clubs])),
    }
    first = f"three communities, 15 nodes known: {medians['communities']:.1%} of the others right"
    second = f"karate club, 2 members known: {medians['club']:.1%} of the others right"
    print(f"{first}, without the graph {medians['without edges']:.1%}\n{second}")
    with plots.style():
        figure = Figure(figsize=(10, 6.2), layout="constrained", dpi=150)
        above, below = figure.subfigures(2, 1, height_ratios=[1, 1])
        draw_communities(above, found[-1])
        above.suptitle(f"{first} (median of {len(seeds)} seeds)")
        draw_club(below, opinions(clubs[-1][0]))
        below.suptitle(f"{second} (median of {len(seeds)} seeds)")
    figure.savefig(folder / "graph_nodes.png")
    return medians


def draw_communities(part, found: Communities) -> None:
    """The states of the nodes at some depths; nodes of known class have a black border."""
    nodes, edges = np.arange(len(found.labels)), np.argwhere(np.triu(found.adjacency))
    is_known = np.isin(nodes, found.known)
    look = {"s": np.where(is_known, 34, 12), "lw": np.where(is_known, 1.2, 0.0), "edgecolor": "black"}
    panels = part.subplots(1, 4)
    plots.layers(found.model, nodes, found.labels, edges=edges, axes=panels, depths=4, **look)
    ring = Line2D([], [], ls="", marker="o", ms=6, mfc="none", mec="black", label="known")
    plots.class_legend(part, (f"community {k}" for k in (1, 2, 3)), ring, ncols=4, loc="outside lower center")


def draw_club(part, views: np.ndarray) -> None:
    """Opinions at some depths on one scale, and how the club broke apart; the leaders have a thick border."""
    adjacency, labels = karate_club()
    places, is_known = plots.graph_positions(adjacency), np.isin(np.arange(34), LEADERS)
    look = {"s": np.where(is_known, 60, 26), "lw": np.where(is_known, 1.6, 0.4), "edgecolor": "black"}
    colours = LinearSegmentedColormap.from_list("sides", (plots.CLASSES[0], "white", plots.CLASSES[1]))
    *panels, last = part.subplots(1, 5)
    for axes, depth in zip(panels, range(0, 7, 2), strict=True):
        plots.graph(adjacency, views[depth], axes, positions=places, cmap=colours, vmin=0, vmax=1, **look)
        axes.set_title("start" if depth == 0 else f"step {depth}")
    plots.graph(adjacency, labels, last, positions=places, **look).set_title("how it broke apart")
    bar = part.colorbar(panels[0].collections[-1], ax=[*panels, last], location="bottom", aspect=50, shrink=0.5)
    bar.set_label("opinion: probability of the president's side, on which orange members were in the end")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
