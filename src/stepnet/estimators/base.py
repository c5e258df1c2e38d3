"""What the estimators share: making the net, scaling, training, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from stepnet import nets
from stepnet.errors import UnknownName
from stepnet.estimators import scaling
from stepnet.nets import Net
from stepnet.nets.penalties import l2
from stepnet.training import METHODS, Data, Method, Objective, Recipe, minimise, optimisers, train

BY_NAME: dict[str, Callable] = {
    each.__name__: each
    for each in (
        nets.resnet, nets.antisymmetric, nets.parabolic, nets.hamiltonian, nets.hyperbolic, nets.midpoint_net,
        nets.leapfrog_net, nets.mlp,
    )
}  # fmt: skip


class NetEstimator(BaseEstimator):
    """A net, a loss and an optimiser as an estimator; see `NetClassifier` and `NetRegressor`."""

    def __init__(
        self, net="hamiltonian", *, width=16, steps=8, length=2.0, scheme=None, activation="tanh", options=None,
        loss=None, alpha=1e-4, smoothness=0.0, optimiser="adam", rate=None, epochs=100, batch_size=32, patience=None,
        scale=True, random_state=None, workers=1, progress=False,
    ):  # fmt: skip
        self.net = net
        self.width = width
        self.steps = steps
        self.length = length
        self.scheme = scheme
        self.activation = activation
        self.options = options
        self.loss = loss
        self.alpha = alpha
        self.smoothness = smoothness
        self.optimiser = optimiser
        self.rate = rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.patience = patience
        self.scale = scale
        self.random_state = random_state
        self.workers = workers
        self.progress = progress

    def _fitted(self, X: np.ndarray, targets: np.ndarray, outputs: int, loss, path, resume: bool):
        """Train a new net on scaled inputs."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.shift_, spread = scaling.standard(X) if self.scale else scaling.none(X.shape[1])
        self.factor_ = 1 / spread
        self.net_ = self._made(X.shape[1], outputs, seed)
        objective = Objective(self.net_, loss, l2(self.alpha), self.smoothness)
        data, optimiser = Data(self._scaled(X), targets), self._optimiser()
        if isinstance(optimiser, Method):
            if path is not None or resume:
                raise ValueError("`path` and `resume` are for mini-batches; this optimiser takes all data at once")
            self.run_: Any = minimise(objective, data, optimiser, progress=self.progress)
            self.n_iter_ = len(self.run_.history)
            return self
        size = None if self.batch_size is None else min(self.batch_size, len(X))
        recipe = Recipe(optimiser, epochs=self.epochs, batch_size=size, patience=self.patience, seed=seed)
        self.run_ = train(objective, data, recipe, progress=self.progress, path=path, resume=resume)
        self.n_iter_ = self.run_.epochs
        return self

    def _optimiser(self):
        """The record of the optimiser; a name takes `rate`, or `epochs` iterations if it is for all data at once."""
        if isinstance(self.optimiser, str) and self.optimiser.lower() in METHODS:
            if self.rate is not None:
                raise ValueError(f"`rate` is for mini-batches; {self.optimiser!r} finds its own steps")
            return METHODS[self.optimiser.lower()](iterations=self.epochs)
        if isinstance(self.optimiser, Method):
            return self.optimiser
        return optimisers.get(self.optimiser, **({} if self.rate is None else {"rate": self.rate}))

    def _made(self, inputs: int, outputs: int, seed: int) -> Net:
        if callable(self.net):
            found = self.net(inputs, outputs)
            if not isinstance(found, Net):
                raise TypeError(f"`net` must give a Net for (inputs, outputs), found {type(found).__name__}")
            return Net(found.design, found.theta, dtype=found.dtype, workers=self.workers, memory=found.memory)
        if self.net not in BY_NAME:
            raise UnknownName("net", self.net, BY_NAME)
        choices = {"length": self.length, "activation": self.activation, "seed": seed, "workers": self.workers}
        choices |= {} if self.scheme is None else {"scheme": self.scheme}
        return BY_NAME[self.net](inputs, outputs, self.width, self.steps, **choices, **(self.options or {}))

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        return (X - self.shift_) * self.factor_

    def _checked(self, X) -> np.ndarray:
        """Scaled samples for a net that was fitted."""
        check_is_fitted(self, "net_")
        return self._scaled(validate_data(self, X, reset=False, dtype=np.float64))

    def outputs(self, X) -> np.ndarray:
        """What the net gives for samples, (n, outputs)."""
        X = self._checked(X)
        return self.net_(X)

    def features(self, X, block: int = 0) -> np.ndarray:
        """States (depths, n, width) inside a block of the net."""
        X = self._checked(X)
        return self.net_.features(X, block)

    # ---- files ------------------------------------------------------------------------------------------------------

    NUMBERS: tuple[str, ...] = ("shift_", "factor_")

    def save(self, path) -> None:
        """Write a fitted estimator into a folder: weights and numbers as safetensors, settings as JSON, no pickle."""
        check_is_fitted(self, "net_")
        settings = self.get_params()
        try:
            text = json.dumps({"estimator": type(self).__name__, "settings": settings, **self._facts()}, indent=1)
        except TypeError as error:
            raise TypeError(f"only settings that are numbers and names can be stored, found {settings}") from error
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "estimator.json").write_text(text + "\n")
        numbers = {name: np.ascontiguousarray(getattr(self, name)) for name in self.NUMBERS}
        save_file(numbers, folder / "numbers.safetensors")
        self.net_.save(folder / "net.safetensors")

    @classmethod
    def load(cls, path):
        """Read an estimator that `save` wrote: it predicts the same bits."""
        folder = Path(path)
        told = json.loads((folder / "estimator.json").read_text())
        if told["estimator"] != cls.__name__:
            raise ValueError(f"`path` holds a {told['estimator']}, not a {cls.__name__}")
        found = cls(**told["settings"])
        for name, value in load_file(folder / "numbers.safetensors").items():
            setattr(found, name, value)
        found.net_ = Net.load(folder / "net.safetensors")
        found.n_features_in_ = told["n_features_in_"]
        found._tell(told)
        return found

    def _facts(self) -> dict:
        return {"n_features_in_": int(self.n_features_in_)}

    def _tell(self, told: dict) -> None:
        """Take what `_facts` has stored."""
