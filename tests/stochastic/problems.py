"""Nonlinear, coupled, time-dependent equations for each type of noise, and closed forms."""

from __future__ import annotations

import numpy as np

import stepnet as sn

SPAN = (0.0, 1.0)
START = (0.8, -0.4)


def drift(t, y, a):
    return np.array([-a * y[0] + np.sin(y[1]) + 0.3 * t, np.cos(y[0]) - a * np.tanh(2 * y[1])])


def scalar(t, y, a):
    return np.array([0.9 * np.sin(y[0]) + 0.6 * y[1], 0.8 * np.cos(y[1]) + 0.1 * t])


def diagonal(t, y, a):
    return np.array([0.9 * np.sin(y[0]) + 0.2 * a, 0.8 * np.cos(y[1]) + 0.2 * t])


def additive(t, y, a):
    return np.array([[1.2 * a, 0.5 * t], [0.3 + 0.9 * np.sin(t), 1.5]])


def commutative(t, y, a):
    return np.array(
        [[0.3 * y[0] - 0.2 * y[1], 0.1 * y[0] - 0.4 * y[1]], [0.2 * y[0] + 0.3 * y[1], 0.4 * y[0] + 0.1 * y[1]]]
    )


def general(t, y, a):
    return np.array([[1.2 * np.cos(y[1]), 0.8 * a], [1.5 * np.sin(y[0]), 0.9 * np.sin(y[1])]])


DIFFUSIONS = {
    "scalar": scalar, "diagonal": diagonal, "additive": additive, "commutative": commutative, "general": general,
}  # fmt: skip


def build(noise: str, calculus: str = "ito", **options) -> sn.SDE:
    """The test equation with this type of noise."""
    return sn.SDE(drift, DIFFUSIONS[noise], START, SPAN, (0.9,), noise=noise, calculus=calculus, **options)


def list_cases() -> list[tuple[str, str]]:
    """All schemes with each type of noise that they admit."""
    schemes = [sn.schemes.get(name) for name in sn.schemes.names("SDE")]
    return [(scheme.name, orders.noise) for scheme in schemes for orders in scheme.orders]
