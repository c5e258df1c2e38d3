"""Classes of nodes from a few that are known, by message passing as steps: communities at random, and a karate club.

Of three communities five members each are known, and every node has features that tell little by themselves.  Of the
club (Zachary 1977) only the instructor and the president are known, and nothing but who is a friend of whom.  The
dynamics are residual; Hamiltonian and parabolic ones learnt less from so few nodes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from data import block_model, karate_club

import stepnet as sn
from stepnet import plots, training

matplotlib.use("Agg")
from matplotlib.figure import Figure


def learnt(adjacency, inputs, labels, known, iterations: int, seed: int):
    """A net that has seen the labels of some nodes, and its accuracy on the others."""
    net = sn.nets.node_net(adjacency, inputs.shape[1], labels.max() + 1, 8, 6, length=2.0, seed=seed)
    model = sn.nets.NodeModel(net, inputs)
    objective = training.Objective(model, "cross_entropy", sn.nets.penalties.l2(1e-3), smoothness=1e-3)
    training.minimise(objective, training.Data(known, labels[known]), training.LBFGS(iterations))
    others = np.setdiff1d(np.arange(len(labels)), known)
    return model, objective.value(model.theta, training.Data(others, labels[others]))[1]


def communities(iterations: int, seed: int):
    """The graph with its communities, the net, and accuracies with and without the edges."""
    adjacency, labels = block_model(seed=seed)
    random = np.random.default_rng(seed)
    angle = 2 * np.pi * labels / 3
    inputs = np.stack((np.cos(angle), np.sin(angle)), axis=1) + random.normal(size=(len(labels), 2))
    known = np.concatenate([random.permutation(np.flatnonzero(labels == k))[:5] for k in range(3)])
    _, alone = learnt(np.eye(len(labels)), inputs, labels, known, iterations, seed)
    model, accuracy = learnt(adjacency, inputs, labels, known, iterations, seed)
    return adjacency, labels, model, accuracy, alone


def opinions(model, nodes: np.ndarray) -> np.ndarray:
    """What the read-out would say at every depth: the difference of two outputs, (depths, nodes)."""
    W, b = model.net.weights["readout.W"][0], model.net.weights["readout.b"]
    return model.features(nodes) @ (W[1] - W[0]) + (b[1] - b[0])


def main(folder: Path, seeds=(0, 1, 2), iterations: int = 40) -> None:
    with plots.style():
        figure = Figure(figsize=(10, 5.6), layout="constrained", dpi=150)
        above, below = figure.subfigures(2, 1)

        found = [communities(iterations, seed) for seed in seeds]
        adjacency, labels, model = found[-1][:3]
        shares = np.median([each[3:] for each in found], axis=0)
        told = f"three communities, 15 nodes known: {shares[0]:.1%} of the others right"
        print(f"{told}, without the graph {shares[1]:.1%}")
        nodes, edges = np.arange(len(labels)), np.argwhere(np.triu(adjacency))
        plots.layers(model, nodes, labels, edges=edges, axes=above.subplots(1, 4), depths=4, s=12)
        above.suptitle(told)

        adjacency, labels = karate_club()
        nodes, known = np.arange(34), np.array([0, 33])
        clubs = [learnt(adjacency, np.eye(34), labels, known, iterations, seed) for seed in seeds]
        told = f"karate club, 2 members known: {np.median([share for _, share in clubs]):.1%} of the others right"
        print(told)
        places, views = plots.graph_positions(adjacency), opinions(clubs[-1][0], nodes)
        *panels, last = below.subplots(1, 4)
        for axes, depth in zip(panels, (0, 3, 6), strict=True):
            bound = np.abs(np.delete(views[depth], known)).max()
            plots.graph(adjacency, views[depth], axes, positions=places, cmap="RdBu_r", vmin=-bound, vmax=bound)
            axes.set_title("opinions at the start" if depth == 0 else f"after step {depth}")
        plots.graph(adjacency, labels, last, positions=places).set_title("how the club broke apart")
        below.suptitle(told)
    figure.savefig(folder / "graph_nodes.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
