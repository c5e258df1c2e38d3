"""Every connectivity x dynamics x scheme x memory: tangent and pullback belong together, to the net and to autograd."""

from __future__ import annotations

import numpy as np
import pytest
from nets.cases import MEMORIES, STEPS, field_of, net_of, pairs_of, pairwise, product_of_all, torch_outputs

import stepnet as sn
from stepnet.engines.numba_engine import layer_sweeps
from stepnet.nets import Block, Design, Net

ALL = product_of_all()
FEW = pairwise(ALL)
REST = [case for case in ALL if case not in set(FEW)]
IDENTITY = 1e-12  # relative: sums of rounding errors over the steps
AUTOGRAD = 1e-10
RECONSTRUCTED = 1e-9  # reconstruction over these few steps loses some digits with random weights
NEAR = 0.1  # of the slope 2 of what a gradient leaves
BATCH = 5


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


class Case:
    """A net, inputs, and directions for both."""

    def __init__(self, case):
        number = ALL.index(case)
        self.net, random = net_of(*case[:3], number), np.random.default_rng(number)
        self.x, self.x_dot = random.normal(size=(2, BATCH, self.net.design.n_in))
        self.theta_dot = random.normal(size=self.net.theta.size)
        self.y_bar = random.normal(size=self.x.shape)
        self.memory = MEMORIES[case[3]]

    def gradient(self, memory):
        return self.net.gradient(self.x, end_gradient=self.y_bar, memory=memory)

    def outputs_at(self, length):
        moved = Net(self.net.design, self.net.theta + length * self.theta_dot)
        return moved(self.x + length * self.x_dot)


def check(case):
    """Adjoint identity, Taylor slope, memory choices."""
    run = Case(case)
    found = run.gradient(run.memory)
    outputs, push = run.net.tangent(run.x, run.theta_dot, run.x_dot)
    np.testing.assert_array_equal(outputs, run.net(run.x))
    one, other = np.vdot(run.y_bar, push), np.vdot(found.theta, run.theta_dot) + np.vdot(found.x, run.x_dot)
    size = np.linalg.norm(run.y_bar) * np.linalg.norm(push)
    bound = RECONSTRUCTED if case[3] == "reversible" else IDENTITY
    assert abs(one - other) <= bound * size
    lengths = np.array([1e-4, 5e-5])
    left = [np.linalg.norm(run.outputs_at(e) - outputs - e * push) for e in lengths]
    assert left[0] < 1e-12 * np.linalg.norm(outputs) or abs(np.log2(left[0] / left[1]) - 2) < NEAR
    stored = run.gradient("all")
    if case[3] == "reversible":
        assert relative(found.theta, stored.theta) < RECONSTRUCTED
    else:
        np.testing.assert_array_equal(found.theta, stored.theta)
        np.testing.assert_array_equal(found.x, stored.x)
    near = run.net.linearised(run.x, memory=run.memory)
    np.testing.assert_array_equal(near.outputs, outputs)
    np.testing.assert_array_equal(near.tangent(run.theta_dot), run.net.tangent(run.x, run.theta_dot)[1])
    for _ in range(2):  # a run that is kept can be used again
        np.testing.assert_array_equal(near.pullback(run.y_bar), found.theta)


def check_autograd(case):
    import torch

    torch.set_num_threads(1)  # matrices are small
    run = Case(case)
    weights = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in run.net.weights.items()}
    x = torch.from_numpy(run.x.copy()).requires_grad_()
    outputs = torch_outputs(run.net, weights, x)
    assert relative(run.net(run.x), outputs.detach().numpy()) < AUTOGRAD
    outputs.backward(torch.from_numpy(run.y_bar))
    found = run.gradient(run.memory)
    assert relative(found.x, x.grad.numpy()) < AUTOGRAD
    wanted = np.concatenate([value.grad.numpy().ravel() for value in weights.values()])
    assert relative(found.theta, wanted) < AUTOGRAD


def test_chosen_cases_hold_every_pair(capsys):
    with capsys.disabled():
        print(f"\n{len(FEW)} of {len(ALL)} combinations of connectivity, dynamics, scheme and memory", end=" ")
    assert set().union(*map(pairs_of, FEW)) == set().union(*map(pairs_of, ALL))


@pytest.mark.parametrize("case", FEW, ids=" ".join)
def test_tangent_and_pullback_of_every_pair_of_factors(case):
    check(case)


@pytest.mark.parametrize("case", FEW, ids=" ".join)
def test_gradients_are_those_of_autograd_for_every_pair_of_factors(case):
    check_autograd(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=" ".join)
def test_tangent_and_pullback_of_the_full_product(case):
    check(case)
    check_autograd(case)


def test_gauss_newton_product_is_symmetric_and_that_of_the_jacobian():
    net, random = net_of("dense", "residual", "rk4", steps=4), np.random.default_rng(0)
    x, (v, w) = random.normal(size=(3, 5)), random.normal(size=(2, net.theta.size))
    J = np.stack([net.tangent(x, e)[1].ravel() for e in np.eye(net.theta.size)], axis=1)
    assert relative(net.gauss_newton(x, v), J.T @ (J @ v)) < IDENTITY
    weighted = net.gauss_newton(x, v, lambda push: 3.0 * push)
    assert abs(w @ weighted - v @ net.gauss_newton(x, w, lambda push: 3.0 * push)) < 1e-10 * abs(w @ weighted)


def test_float32_gradients_agree_with_float64():
    for case in (
        ("dense", "hamiltonian", "verlet"),
        ("conv2d", "parabolic", "euler"),
        ("attention", "residual", "rk4"),
    ):
        net, single = net_of(*case), net_of(*case, dtype=np.float32)
        x = np.random.default_rng(1).normal(size=(BATCH, net.design.n_in))
        found = single.gradient(x, end_gradient=np.ones_like(x))
        assert found.theta.dtype == found.x.dtype == np.float32
        assert relative(found.theta, net.gradient(x, end_gradient=np.ones_like(x)).theta) < 1e-5


def test_loss_is_given_as_value_and_gradient():
    net, x = net_of("dense", "residual", "euler"), np.random.default_rng(2).normal(size=(BATCH, 5))
    found = net.gradient(x, lambda y: (0.5 * np.sum(y * y), y))
    assert found.value == 0.5 * np.sum(net(x) ** 2)
    np.testing.assert_array_equal(found.outputs, net(x))
    np.testing.assert_array_equal(found.theta, net.gradient(x, end_gradient=net(x)).theta)
    np.testing.assert_array_equal(found.weights["blocks.0.b"].ravel(), found.theta[-found.weights["blocks.0.b"].size :])


def test_a_linearised_net_stays_at_its_parameters():
    net, random = net_of("dense", "hamiltonian", "verlet"), np.random.default_rng(3)
    x, v = random.normal(size=(300, 10)), random.normal(size=net.theta.size)
    near, other = net.linearised(x), net.linearised(x + 1)
    wanted, product = net.tangent(x, v)[1], net.gauss_newton(x, v, lambda u: 3 * u)
    net.put(net.theta + v)
    np.testing.assert_array_equal(near.tangent(v), wanted)
    np.testing.assert_array_equal(near.gauss_newton(v, lambda u: 3 * u), product)
    assert not np.array_equal(other.tangent(v), wanted)


def test_a_net_keeps_what_it_was_told_to():
    net = net_of("dense", "hamiltonian", "verlet", steps=100)
    told = Net(net.design, net.theta, memory="reversible")
    x = np.random.default_rng(4).normal(size=(3, 10))
    np.testing.assert_array_equal(
        told.gradient(x, end_gradient=x).theta, net.gradient(x, end_gradient=x, memory="reversible").theta
    )
    assert told.refined().memory == "reversible"
    assert not told._execution._free  # nothing was kept


@pytest.mark.parametrize("size", [1, 2, 3, 7, 19, 20])
def test_segments_of_any_length_are_reversed(size, monkeypatch):
    """The last of them may be a single step."""
    monkeypatch.setattr(layer_sweeps, "block", lambda stage, groups: size)
    require_stored("segments", net_of("graph", "hamiltonian", "yoshida4", number=1))


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("scheme", ["symplectic_euler_kick", "verlet", "yoshida4"])
def test_few_steps_are_reversed(scheme, steps):
    require_stored("reversible", net_of("dense", "hamiltonian", scheme, number=1, steps=steps))


def test_every_step_that_can_be_undone_leaves_its_record(capsys):
    """What the reverse run reads of a step is found again when the step is undone, for the whole catalogue."""
    count = 0
    for dynamics in ("residual", "hamiltonian", "hyperbolic", "staggered"):
        field = field_of("dense", dynamics)
        for name in sn.schemes.names():
            try:
                block = Block(field, name, STEPS)
            except (TypeError, ValueError):
                continue  # a scheme for fields of another kind
            if block.motion.back is not None:
                require_stored("reversible", Net(Design((block,)), seed=count))
                count += 1
    with capsys.disabled():
        print(f"\n{count} pairs of dynamics and scheme undone")
    assert count >= 65


def require_stored(memory, net):
    """The same gradients as with everything kept."""
    x = np.random.default_rng(3).normal(size=(BATCH, net.design.n_in))
    stored, found = (net.gradient(x, end_gradient=x, memory=each) for each in ("all", memory))
    assert relative(found.theta, stored.theta) < IDENTITY
    assert relative(found.x, stored.x) < IDENTITY


def test_reversible_memory_does_not_grow_with_depth():
    sizes = []
    for steps in (300, 3000):
        net = net_of("dense", "hamiltonian", "verlet", steps=steps)
        net.gradient(np.ones((3, 10)), end_gradient=np.ones((3, 10)), memory="reversible")
        (stage,) = (each.fitted(1) for each in net._execution.stages)
        sizes.append(sum(room.memory.nbytes for room in stage._free))
        stored = stage.stored_bytes(1)
    assert sizes[1] <= sizes[0] < stored
