"""Small models with the interface of a net, written by hand, and data for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepnet.training import Data


@dataclass(frozen=True, eq=False)
class Found:
    value: float
    theta: np.ndarray
    outputs: np.ndarray


class TwoLayer:
    """tanh(x K' + b) W' + c; `width` zero leaves the linear model x W' + c, `readout` False the features alone."""

    def __init__(self, n_in: int, width: int, n_out: int, readout: bool = True, dtype=np.float64):
        shapes = [(width, n_in), (width,)] if width else []
        if readout:
            shapes += [(n_out, width or n_in), (n_out,)]
        self.shapes, self.width, self.readout = shapes, width, readout
        size = sum(int(np.prod(shape)) for shape in shapes)
        self.theta = np.random.default_rng(3).normal(scale=0.5, size=size).astype(dtype)

    def put(self, theta):
        assert theta.shape == self.theta.shape
        self.theta = np.array(theta, self.theta.dtype)

    def parts(self, theta) -> list[np.ndarray]:
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(theta, ends), self.shapes, strict=True)]

    def features(self, x):
        if not self.width:
            return x
        K, b = self.parts(self.theta)[:2]
        return np.tanh(x @ K.T + b)

    def __call__(self, x):
        h = self.features(x)
        if not self.readout:
            return h
        W, c = self.parts(self.theta)[-2:]
        return h @ W.T + c

    def pullback(self, x, u):
        h, found = self.features(x), []
        if self.readout:
            W = self.parts(self.theta)[-2]
            found, u = [u.T @ h, u.sum(axis=0)], u @ W
        if self.width:
            a = u * (1 - h * h)
            found = [a.T @ x, a.sum(axis=0), *found]
        return np.concatenate([part.ravel() for part in found])

    def tangent(self, x, v):
        h, dots = self.features(x), self.parts(v)
        h_dot = (1 - h * h) * (x @ dots[0].T + dots[1]) if self.width else 0 * x
        if not self.readout:
            return h_dot
        W = self.parts(self.theta)[-2]
        return h_dot @ W.T + h @ dots[-2].T + dots[-1]

    def gradient(self, x, loss):
        outputs = self(x)
        value, u = loss(outputs)
        return Found(value, self.pullback(x, u), outputs)

    def gauss_newton(self, x, v, hessian):
        return self.pullback(x, hessian(self.tangent(x, v)))

    def jacobian(self, x):
        """(batch x outputs, parameters)."""
        return np.stack([self.tangent(x, unit).ravel() for unit in np.eye(self.theta.size)], axis=1)

    def roughness(self):
        """Half the squared differences of neighbours, and the gradient."""
        d = np.diff(self.theta)
        return 0.5 * float(d @ d), np.concatenate(([0.0], d)) - np.concatenate((d, [0.0]))


class Steps:
    """y <- y + h tanh(K y), step by step from y = x; the outputs are the end state."""

    def __init__(self, width: int, steps: int, theta=None):
        self.width, self.steps = width, steps
        self.theta = np.zeros(steps * width**2) if theta is None else theta

    def put(self, theta):
        self.theta = np.array(theta)

    @property
    def layers(self):
        return self.theta.reshape(self.steps, self.width, self.width)

    def path(self, x):
        states = [x]
        for K in self.layers:
            states.append(states[-1] + np.tanh(states[-1] @ K.T) / self.steps)
        return states

    def __call__(self, x):
        return self.path(x)[-1]

    def gradient(self, x, loss):
        states = self.path(x)
        value, y_bar = loss(states[-1])
        found = []
        for K, y in zip(self.layers[::-1], states[-2::-1], strict=True):
            a = y_bar * (1 - np.tanh(y @ K.T) ** 2) / self.steps
            found.append((a.T @ y).ravel())
            y_bar = y_bar + a @ K
        return Found(value, np.concatenate(found[::-1]), states[-1])

    def views(self, theta):
        return {f"blocks.{i}.K": K for i, K in enumerate(theta.reshape(self.layers.shape))}

    def refine(self):
        return Steps(self.width, 2 * self.steps, np.repeat(self.layers, 2, axis=0).ravel())


def blobs(n: int = 90, classes: int = 3, seed: int = 0) -> Data:
    """Clouds around a circle, which overlap a little."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, n)
    angle = 2 * np.pi * y / classes
    return Data(np.stack((np.cos(angle), np.sin(angle)), 1) + random.normal(scale=0.5, size=(n, 2)), y)


def waves(n: int = 60) -> Data:
    random = np.random.default_rng(1)
    x = random.uniform(-2, 2, (n, 2))
    return Data(x, np.stack((np.sin(x[:, 0]), x[:, 0] * x[:, 1]), 1))
