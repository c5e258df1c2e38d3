"""Graphs: diffusion makes all nodes equal, deep message passing forgets the classes, hyperbolic dynamics keeps them.

Li, Han & Wu (2018), arXiv:1801.07606, and Oono & Suzuki (2020), arXiv:1905.10947, on smoothing; Eliasof, Haber &
Treister (2021), arXiv:2108.01938, on parabolic and hyperbolic nets of graphs.  The graph and all numbers are ours.
"""

from __future__ import annotations

import data
import numpy as np
import pytest
from claims.measured import SEEDS, show

from stepnet import fields, nets, training
from stepnet.fields import Chain, Layer, Mixing
from stepnet.nets.losses import Expansion, cross_entropy

CLASSES, CHANNELS = 3, 4
EDGES, LABELS = data.block_model((20, 20, 20), within=0.4, between=0.04)
NODES = len(LABELS)
LOOPS = EDGES + np.eye(NODES)
LAPLACIAN = np.eye(NODES) - LOOPS / np.sqrt(np.outer(LOOPS.sum(axis=1), LOOPS.sum(axis=1)))
EXACT, ROUNDING = 1e-9, 1e-15
H = 0.5


def energies(states: np.ndarray) -> np.ndarray:
    """Dirichlet's sum over channels and samples of x' L x, at every depth: zero if neighbours agree."""
    x = states[:, :, : CHANNELS * NODES].reshape(len(states), -1, NODES)
    return np.einsum("dcj,jk,dck->d", x, LAPLACIAN, x)


def linear_states(field: fields.Field, scheme, steps: int, x: np.ndarray) -> np.ndarray:
    """States of a net that mixes no channels and has no bias."""
    net = nets.Net(nets.Design((nets.Block(field, scheme, steps, H * steps, fields.Depth(steps)),)), workers=1)
    net.put(np.zeros_like(net.theta))
    net.weights["blocks.0.K"][...] = np.eye(CHANNELS)
    return net.features(np.hstack((x, 0 * x)) if field.kind == "second" else x)


def test_dirichlet_energies_follow_the_spectrum_of_the_graph():
    """Euler's factor 1 - h l^2 in each mode of the Laplacian, 1 - l of plain layers; waves keep a share."""
    steps, x = 200, np.random.default_rng(0).normal(size=(8, CHANNELS * NODES))
    laplacian = fields.graph(LOOPS, CHANNELS, filter="laplacian")
    eigenvalues, modes = np.linalg.eigh(LAPLACIAN)
    weights = eigenvalues * np.sum((x.reshape(-1, NODES) @ modes) ** 2, axis=0)
    k = np.arange(steps + 1)[:, None]
    diffused = energies(linear_states(fields.parabolic(laplacian, "identity"), "euler", steps, x))
    passed = energies(linear_states(fields.residual(fields.graph(EDGES, CHANNELS), "identity"), None, steps, x))
    swung = energies(linear_states(fields.hyperbolic(laplacian, "identity"), "verlet", steps, x))
    for found, factors in ((diffused, 1 - H * eigenvalues**2), (passed, 1 - eigenvalues)):
        np.testing.assert_allclose(found, factors ** (2 * k) @ weights, rtol=EXACT, atol=ROUNDING * weights.sum())
    show(
        "energies over the first one: decay of diffusion and of plain layers, none of waves",
        {f"{name}, depth {n}": [e[n] / e[0]] for n in (8, 64, 200)
         for name, e in (("diffusion", diffused), ("plain layers", passed), ("waves", swung))},
    )  # fmt: skip
    assert diffused[-1] < 1e-3 * diffused[0]
    assert passed[64] < 1e-8 * passed[0]
    assert swung[64:].min() > 0.3 * swung[0]


class AtEveryNode:
    """Cross-entropy at all nodes of all signals; outputs are (signals, classes x nodes)."""

    hits = None

    def at(self, outputs, targets, weights=None) -> Expansion:
        logits = outputs.reshape(-1, CLASSES, NODES).swapaxes(1, 2)
        inner = cross_entropy().at(logits.reshape(-1, CLASSES), np.tile(LABELS, len(outputs)))

        def slope():
            return inner.gradient.reshape(logits.shape).swapaxes(1, 2).reshape(outputs.shape)

        return Expansion(inner.value, slope, inner.product)


def signals(count: int, seed: int) -> np.ndarray:
    """The class of every node in noise that hides it."""
    noise = np.random.default_rng(seed).normal(scale=1.5, size=(count, CLASSES * NODES))
    return np.eye(CLASSES)[LABELS].T.ravel() + noise


def net_of(name: str, depth: int, seed: int) -> nets.Net:
    def at_nodes(n_in, n_out):
        return Mixing("nodes", n_in, n_out, (np.eye(NODES),))

    laplacian, size = fields.graph(LOOPS, CHANNELS, filter="laplacian"), CHANNELS * NODES
    block = {
        "plain layers": lambda: nets.Block(fields.residual(fields.graph(EDGES, CHANNELS)), None, depth),
        "diffusion": lambda: nets.Block(fields.parabolic(laplacian), "euler", depth, H * depth),
        "waves": lambda: nets.Block(fields.hyperbolic(laplacian), "verlet", depth, H * depth, fields.Depth(depth)),
    }[name]()
    opening, readout = [Layer(at_nodes(CLASSES, CHANNELS), activation="tanh")], [Layer(at_nodes(CHANNELS, CLASSES))]
    if block.field.width != size:
        opening.append(Layer(fields.resized(size, 2 * size), None, None))
        readout.insert(0, Layer(fields.resized(2 * size, size), None, None))
    return nets.Net(nets.Design((block,), Chain(tuple(opening)), Chain(tuple(readout))), seed=seed, workers=1)


def accuracy(name: str, depth: int, seed: int) -> float:
    """At the nodes of new signals, after 60 steps of L-BFGS on 64 others."""
    net, x = net_of(name, depth, seed), signals(64, 100 + seed)
    objective = training.Objective(net, AtEveryNode(), nets.penalties.l2(1e-3))
    training.minimise(objective, training.Data(x, np.zeros(len(x))), training.LBFGS(60))
    found = net(signals(256, 200 + seed)).reshape(-1, CLASSES, NODES).argmax(axis=1)
    return float(np.mean(found == LABELS))


@pytest.mark.slow
def test_depth_ruins_plain_layers_does_little_for_diffusion_and_helps_waves():
    rows = {
        f"{name}, depth {depth}": [accuracy(name, depth, seed) for seed in SEEDS]
        for name in ("plain layers", "diffusion", "waves")
        for depth in (2, 8, 64)
    }
    alone = np.mean(signals(256, 200).reshape(-1, CLASSES, NODES).argmax(axis=1) == LABELS)
    medians = show(
        "plain layers of depth 8 and more near chance (1/3); waves of depth 64 above all others.  Trained diffusion "
        "keeps its accuracy, too: weights learn to diffuse less",
        {"no graph": [float(alone)], **rows},
    )
    assert max(medians["plain layers, depth 8"], medians["plain layers, depth 64"]) < 0.6
    assert medians["plain layers, depth 2"] > 0.8
    assert medians["waves, depth 64"] > max(value for name, value in medians.items() if name != "waves, depth 64")
    assert medians["waves, depth 64"] > 0.95
    assert abs(medians["diffusion, depth 64"] - medians["diffusion, depth 8"]) < 0.05
