"""Contenders for training: the same layers from the same weights, by Adam on the same mini-batches and rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

BATCH, LAYERS, HIDDEN, LENGTH = 64, 8, 2, 4.0
DECAY = {"residual": 0.9, "plain": 0.95}  # of the rate in each epoch
MOST_EPOCHS = 40


@cache
def digits() -> tuple[np.ndarray, ...]:
    """Handwritten digits less their mean: samples and classes to train on, samples and classes to test on."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x / 16, y, test_size=0.25, stratify=y, random_state=0)
    mean = x.mean(axis=0)
    return x - mean, y, x_test - mean, y_test


@cache
def peaks(train: int = 1000, test: int = 200) -> tuple[np.ndarray, ...]:
    """Points of a grid in five bands of a surface with hills and hollows, as many of each; Haber & Ruthotto (2017)."""
    line = np.linspace(-3, 3, 256)
    x, y = (each.ravel() for each in np.meshgrid(line, line))
    height = (
        3 * (1 - x) ** 2 * np.exp(-(x**2) - (y + 1) ** 2)
        - 10 * (x / 5 - x**3 - y**5) * np.exp(-(x**2) - y**2)
        - np.exp(-((x + 1) ** 2) - y**2) / 3
    )
    band = np.digitize(height, np.linspace(height.min(), height.max(), 6)[1:-1])
    random = np.random.default_rng(0)
    chosen = np.stack([random.permutation(np.flatnonzero(band == k))[: train + test] for k in range(5)])
    points = np.stack((x, y), axis=1)
    own, others = chosen[:, :train].ravel(), chosen[:, train:].ravel()
    return points[own], band[own], points[others], band[others]


@dataclass(frozen=True)
class Task:
    """A net to be trained until it gets this share of the test samples right."""

    data: Callable[[], tuple[np.ndarray, ...]]
    accuracy: float
    kind: str
    width: int

    @property
    def name(self) -> str:
        return f"{self.data.__name__} {self.kind} {self.width}"

    @property
    def rate(self) -> float:
        return 0.01 if self.width <= 32 else 0.003

    @cache  # noqa: B019  a handful of tasks
    def net(self):
        """With the weights that everybody begins with; it is not trained itself."""
        from stepnet import nets

        x, y, *_ = self.data()
        make, layers = (nets.resnet, LAYERS) if self.kind == "residual" else (nets.mlp, HIDDEN)
        return make(x.shape[1], int(y.max()) + 1, self.width, layers, length=LENGTH, seed=0, workers=1)

    @cache  # noqa: B019
    def trained(self):
        """The same net to be trained again and again."""
        from stepnet.nets import Net

        return Net(self.net().design, self.net().theta, workers=1)

    def recipe(self, epochs: int):
        from stepnet.training import Adam, Recipe, StepDecay

        return Recipe(Adam(StepDecay(self.rate, 1.0, DECAY[self.kind])), epochs=epochs, batch_size=BATCH)


class Contender(NamedTuple):
    """`train(task, epochs, is_watched)` begins from the first weights; it gives test accuracies if it is watched."""

    name: str
    package: str
    train: Callable[[Task, int, bool], Sequence[float]]
    kinds: tuple[str, ...] = ("residual", "plain")


def stepnet(task: Task, epochs: int, is_watched: bool):
    from stepnet import training

    x, y, *held = task.data()
    objective, held = training.Objective(task.trained(), "cross_entropy"), training.Data(*held) if is_watched else None
    run = training.train(objective, training.Data(x, y), task.recipe(epochs), theta=task.net().theta, validation=held)
    return run.history["validation_accuracy"]


def by_epochs(begin: Callable) -> Callable[[Task, int, bool], Sequence[float]]:
    """Training by `begin(task)`, a loop over epochs that gives a function from samples to outputs after each."""

    def train(task, epochs, is_watched):
        x, y, found = *task.data()[2:], []
        for _, outputs in zip(range(epochs), begin(task), strict=False):
            if is_watched:
                found.append(float(np.mean(np.argmax(outputs(x), axis=1) == y)))
                if found[-1] >= task.accuracy:
                    break
        return found

    return train


def torch_eager(task: Task):
    import torch
    from torch.nn.functional import cross_entropy, linear

    torch.set_num_threads(1)
    x, y, *_ = (torch.tensor(each) for each in task.data())
    weights = {name: torch.nn.Parameter(torch.tensor(np.array(each))) for name, each in task.net().weights.items()}
    is_residual, h = task.kind == "residual", LENGTH / LAYERS

    def outputs(z):
        z = torch.tanh(linear(z, weights["opening.K"], weights["opening.b"]))
        for K, b in zip(weights["blocks.0.K"].unbind(0), weights["blocks.0.b"].unbind(0), strict=True):
            slope = torch.tanh(linear(z, K, b))
            z = torch.add(z, slope, alpha=h) if is_residual else slope
        return linear(z, weights["readout.W"], weights["readout.b"])

    def predicted(points):
        with torch.no_grad():
            return outputs(torch.tensor(points)).numpy()

    optimiser, recipe = torch.optim.Adam(weights.values()), task.recipe(MOST_EPOCHS)
    for epoch in range(MOST_EPOCHS):
        optimiser.param_groups[0]["lr"] = recipe.optimiser.rate(epoch)
        for rows in torch.split(torch.tensor(recipe.order(len(x), epoch)), BATCH):
            optimiser.zero_grad()
            cross_entropy(outputs(x[rows]), y[rows]).backward()
            optimiser.step()
        yield predicted


def scikit_learn(task: Task):
    """Without a penalty, in the given order, from the given weights; its Adam adds eps before the correction."""
    from sklearn.neural_network import MLPClassifier

    x, y, *_ = task.data()
    weights, recipe = task.net().weights, task.recipe(MOST_EPOCHS)
    model = MLPClassifier((task.width,) * (HIDDEN + 1), "tanh", alpha=0.0, batch_size=BATCH, shuffle=False)
    model.partial_fit(x[:BATCH], y[:BATCH], classes=np.unique(y))  # makes the arrays, which are filled now
    matrices = [weights["opening.K"], *weights["blocks.0.K"], weights["readout.W"]]
    biases = [weights["opening.b"], *weights["blocks.0.b"], weights["readout.b"]]
    for own, given in zip(model.coefs_ + model.intercepts_, [*(each.T for each in matrices), *biases], strict=True):
        own[...] = given
    del model._optimizer  # one without moments is made
    for epoch in range(MOST_EPOCHS):
        model.learning_rate_init = recipe.optimiser.rate(epoch)
        if epoch:
            model._optimizer.learning_rate_init = model.learning_rate_init
        order = recipe.order(len(x), epoch)
        model.partial_fit(x[order], y[order])
        yield model.predict_proba


OURS, TORCH, SCIKIT = "stepnet", "torch", "scikit-learn MLPClassifier"
CONTENDERS = (
    Contender(OURS, "stepnet", stepnet),
    Contender(TORCH, "torch", by_epochs(torch_eager)),
    Contender(SCIKIT, "scikit-learn", by_epochs(scikit_learn), ("plain",)),
)
