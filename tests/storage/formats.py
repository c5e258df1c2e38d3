"""Everything that the package stores: two versions of each, how to store one, and what is read back and used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import make_moons
from training.models import TwoLayer, blobs

import stepnet as sn
from stepnet import training
from stepnet.ensembles.sweeps import storage as sweep_storage
from stepnet.estimators import NetClassifier, NetRegressor
from stepnet.gradients import reversal, state_store
from stepnet.nets import Block, Design, Net
from stepnet.training import storage

X, Y = make_moons(40, noise=0.1, random_state=0)
RING = np.roll(np.eye(4), 1, axis=1) + np.roll(np.eye(4), -1, axis=1)


class Format(NamedTuple):
    """`versions()` gives two things, `save(folder, version)` stores one, `read(folder)` uses what is there."""

    versions: Callable[[], tuple]
    save: Callable[[Path, object], None]
    read: Callable[[Path], bytes]


def digest(*arrays) -> bytes:
    return hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in arrays)).digest()


# ---- integrators -----------------------------------------------------------------------------------------------------


def slopes(t, y, k):
    return [y[1], -k * y[0]]


PROBLEM = sn.ODE(slopes, [1.0, 0.0], (0.0, 2.0), (1.3,))


def integrator(**how) -> Format:
    def versions():
        return tuple(start().run_to(t) for t in (0.4, 1.2))

    def start(**more):
        return sn.start(PROBLEM, "dopri5", **how, **more)

    def read(folder):
        found = start(restore=folder / "run.npz")
        t, y, steps = found.t, found.y, found.steps
        found.run_to(2.0)
        return digest(np.array([t, steps]), y, found.y)

    return Format(versions, lambda folder, run: run.save(folder / "run.npz"), read)


# ---- nets ------------------------------------------------------------------------------------------------------------


def net(build: Callable[[int], Net]) -> Format:
    def read(folder):
        found = sn.nets.load(folder / "net.safetensors")
        x = np.cos(np.arange(3 * found.design.n_in)).reshape(3, -1)
        return digest(found(x), found.gradient(x, end_gradient=found(x), memory="all").theta)

    return Format(lambda: (build(1), build(2)), lambda folder, each: each.save(folder / "net.safetensors"), read)


def convolution(seed: int) -> Net:
    field = sn.fields.residual(sn.fields.conv1d(6, 1))
    return Net(Design((Block(field, "euler", 3),)), seed=seed)


# ---- runs ------------------------------------------------------------------------------------------------------------


def trained(folder: Path, epochs: int, resume: bool):
    goal = training.Objective(TwoLayer(2, 4, 3), "cross_entropy")
    recipe = training.Recipe("adam", epochs=epochs, batch_size=30)
    return training.train(goal, blobs(), recipe, path=folder, resume=resume, check=False)


def save_run(folder: Path, epochs: int) -> None:
    """A whole run at first, then its state alone, again and again."""
    store = storage.Store(folder)
    if not store.holds_a_run:
        trained(folder, 3, resume=False)
        save_run.states = {}
    if epochs not in save_run.states:
        state = store.read()[0]
        save_run.states[epochs] = state._replace(theta=state.theta + epochs)
    store.write(save_run.states[epochs])


def read_run(folder: Path) -> bytes:
    stored = training.load(folder)
    return digest(stored.theta, trained(folder, 4, resume=True).theta)


# ---- estimators ------------------------------------------------------------------------------------------------------


def estimator(kind, **settings) -> Format:
    def versions():
        return tuple(kind(width=4, steps=2, epochs=1, random_state=seed, **settings).fit(X, Y) for seed in (0, 1))

    def read(folder):
        found = kind.load(folder)
        return digest(found.outputs(X), found.net_.theta, found.predict(X).astype(float), found.run_.theta)

    return Format(versions, lambda folder, each: each.save(folder), read)


# ---- sweeps ----------------------------------------------------------------------------------------------------------

REDUCTIONS = {"all": sn.reductions.States(), "mean": sn.reductions.Mean(), "middle": sn.reductions.Quantiles((0.5,))}


def swept(folder: Path, large: int):
    before, sweep_storage.LARGE = sweep_storage.LARGE, large
    try:
        how = {"steps": 20, "chunk": 3, "reduce": REDUCTIONS, "workers": 1}
        return sn.sweep(PROBLEM, "rk4", {"k": np.linspace(1, 2, 12)}, path=folder, **how)
    finally:
        sweep_storage.LARGE = before


def sweep(large: int) -> Format:
    def read(folder):
        states, mean, middle = swept(folder, large).results.values()
        return digest(states.y, states.steps, mean.mean, mean.variance, middle.values)

    return Format(lambda: (None, None), lambda folder, _: swept(folder, large) and None, read)


# ---- gradients with a directory --------------------------------------------------------------------------------------


class Stopped(Exception):
    pass


def disk_gradient(folder: Path, blocks: int | None = None):
    """A gradient that is stopped after so many blocks of its way back."""
    pull_back, left = reversal.Reversal.pull_back, iter(range(10**9 if blocks is None else blocks))

    def counted(self, first, last):
        if next(left, None) is None:
            raise Stopped
        pull_back(self, first, last)

    before = reversal.BLOCK_NUMBERS, state_store.PROGRESS_SECONDS
    reversal.BLOCK_NUMBERS, state_store.PROGRESS_SECONDS, reversal.Reversal.pull_back = 6, 0.0, counted
    try:
        memory = sn.Checkpoints(2, disk=folder)
        return sn.gradient(PROBLEM, "rk4", lambda y: np.sum(y * y), steps=60, memory=memory)
    except Stopped:
        return None
    finally:
        reversal.Reversal.pull_back = pull_back
        reversal.BLOCK_NUMBERS, state_store.PROGRESS_SECONDS = before


def read_gradient(folder: Path) -> bytes:
    found = disk_gradient(folder)
    return digest(found.y0, np.array(found.args))


FORMATS = {
    "integrator, adaptive": integrator(rtol=1e-7),
    "integrator, even steps": integrator(steps=40),
    "net": net(lambda seed: sn.nets.hamiltonian(2, 2, 4, 3, seed=seed)),
    "net on a graph": net(lambda seed: sn.nets.node_net(RING, 2, 3, 2, 2, seed=seed)),
    "net of convolutions": net(convolution),
    "run": Format(lambda: (1, 2), save_run, read_run),
    "classifier": estimator(NetClassifier),
    "regressor": estimator(NetRegressor, optimiser="lbfgs"),
    "sweep": sweep(2**28),
    "sweep in Zarr": sweep(1),
    "gradient": Format(lambda: (5, 5), disk_gradient, read_gradient),
}
CONTINUED = ("sweep", "sweep in Zarr", "gradient")  # a call goes on with what is there
REPLACED = [name for name in FORMATS if name not in CONTINUED]  # a call replaces what is there
