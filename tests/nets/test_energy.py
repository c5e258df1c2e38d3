"""Energies of nets with the same weights in every layer: bounded errors that fall with the step, without a drift.

For S' = s the Hamiltonian net has H = sum S(K p + b) + sum S(K q + b), and the hyperbolic net E = |v|^2 / 2 +
sum S(K y + b).  Symplectic schemes keep both up to an oscillation of their order; Hairer, Lubich & Wanner (2006), IX.8.
"""

from __future__ import annotations

import numpy as np
import pytest

from stepnet import fields, nets
from stepnet.nets import Block, Design, Net

N, LENGTH = 4, 400.0
POTENTIALS = {  # S with S' = s
    "tanh": lambda u: np.logaddexp(u, -u) - np.log(2),
    "sigmoid": lambda u: np.logaddexp(u, 0),
}
ORDERS = {"symplectic_euler_drift": 1, "symplectic_euler_kick": 1, "verlet": 2, "leapfrog_two_step": 2, "yoshida4": 4}
CASES = [
    (dynamics, scheme, activation)
    for dynamics in ("hamiltonian", "hyperbolic")
    for scheme in ORDERS
    for activation in POTENTIALS
    if dynamics == "hyperbolic" or scheme != "leapfrog_two_step"
]


def steady(dynamics, scheme, activation, steps, length=LENGTH):
    """A net with one K and b for all layers, and inputs."""
    field = fields.DYNAMICS[dynamics](fields.dense(N), activation)
    net = Net(Design((Block(field, scheme, steps, length, fields.HeldWeights(1)),)))
    random = np.random.default_rng(3)
    net.weights["blocks.0.K"][...] = random.normal(size=(N, N)) / 2
    net.weights["blocks.0.b"][...] = random.normal(size=N) / 2
    return net, random.normal(size=(5, net.design.n_in))


def energies(net, states, dynamics, activation):
    """`(depths, samples)`."""
    K, b, S = net.weights["blocks.0.K"][0], net.weights["blocks.0.b"][0], POTENTIALS[activation]

    def potential(y):
        return S(y @ K.T + b).sum(axis=-1)

    q, p = np.split(states, 2, axis=-1)
    return potential(q) + (potential(p) if dynamics == "hamiltonian" else np.sum(p * p, axis=-1) / 2)


def errors(dynamics, scheme, activation, steps):
    """Of the energy in every tenth of the depth, the largest over the samples, relative."""
    net, x = steady(dynamics, scheme, activation, steps)
    energy = energies(net, net.features(x), dynamics, activation)
    relative = np.abs(energy - energy[0]) / np.abs(energy[0])
    return np.array([tenth.max() for tenth in np.array_split(relative, 10)])


@pytest.mark.parametrize(("dynamics", "scheme", "activation"), CASES)
def test_energy_oscillates_in_the_order_of_the_scheme_and_does_not_drift(dynamics, scheme, activation):
    coarse, fine = (errors(dynamics, scheme, activation, steps) for steps in (4000, 8000))
    print(f"energy of {dynamics} nets, {activation}, {scheme}, T = {LENGTH:g}: largest error {coarse.max():.1e} at "
          f"h = 0.1, {fine.max():.1e} at h = 0.05; last tenth over first {coarse[-1] / coarse[0]:.2f}")  # fmt: skip
    assert coarse.max() < {1: 0.2, 2: 0.02, 4: 2e-3}[ORDERS[scheme]]
    assert abs(np.log2(coarse.max() / fine.max()) - ORDERS[scheme]) < 0.3
    for found in (coarse, fine):
        assert found[5:].max() < 1.2 * found[:5].max()  # as large at the end as at the beginning


@pytest.mark.parametrize("dynamics", ["hamiltonian", "hyperbolic"])
def test_a_bounded_energy_does_not_bound_the_jacobian(dynamics):
    """Trajectories of one energy part linearly in time where frequencies depend on the amplitude, or faster."""
    norms = []
    for length in (100.0, 200.0, 400.0):
        net, x = steady(dynamics, "verlet", "tanh", int(10 * length), length)
        J = net.tangent(np.tile(x[0], (2 * N, 1)), x_dot=np.eye(2 * N))[1].T
        norms.append(np.linalg.norm(J, 2))
    print(f"largest singular value of {dynamics} nets with constant weights, T = 100, 200, 400: "
          + ", ".join(f"{norm:.3g}" for norm in norms))  # fmt: skip
    assert norms[1] > 1.5 * norms[0]
    assert norms[2] > 1.5 * norms[1]


def test_weights_that_change_do_not_keep_an_energy():
    """Work is done where K jumps from layer to layer: energies are those of weights which do not depend on depth."""
    net = nets.hyperbolic(None, None, N, 400, length=40.0, scheme="verlet")
    net.put(np.random.default_rng(4).normal(size=net.theta.size) / 2)
    states = net.features(np.random.default_rng(5).normal(size=(5, N)))
    energy = energies(net, states, "hyperbolic", "tanh")
    assert np.abs(energy / energy[0] - 1).max() > 0.5
