"""Every connectivity x dynamics x scheme x memory: tangent and pullback are consistent with the net and autograd."""

from __future__ import annotations

import numpy as np
import pytest
from nets.cases import (
    MEMORIES,
    SEGMENT,
    SEVERAL,
    STEPS,
    field_of,
    kinked_cases,
    memory_of,
    net_of,
    pairs_of,
    pairwise,
    product_of_all,
    scattered,
    torch_outputs,
)
from scheme_names import FIXED_STEPS

from stepnet.engines.numba_engine.layers import stage_sweeps
from stepnet.nets import Block, Design, Net

ALL = product_of_all()
FEW = pairwise(ALL)
REST = [case for case in ALL if case not in set(FEW)]
KINKED = kinked_cases()
FEW_KINKED = pairwise(KINKED)
REST_KINKED = [case for case in KINKED if case not in set(FEW_KINKED)]
JOINED = [(name, memory) for name, (_, is_undone) in SEVERAL.items() for memory in MEMORIES
          if is_undone or memory != "reversible"]  # fmt: skip
IDENTITY = 1e-12  # relative: sums of rounding errors over the steps, undone ones as well; a few 1e-15 are seen
AUTOGRAD = 1e-10
NEAR = 0.1  # of the slope 2 of what a gradient leaves
BATCH = 5
# Relative errors of float32: a few hundred roundings of 6e-8, more where tangents or undone states grow.
SINGLE = {"values": 1e-5, "gradients": 1e-5, "tangents": 5e-5, "gradients of undone steps": 5e-5}
ILL = 3e-5  # of gradients that rounding the inputs once moves nearly as far


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    """Else all steps of a small net are one segment, and memory choices are all the same."""
    monkeypatch.setattr(stage_sweeps, "choose_block", lambda stage, groups: SEGMENT)


class Run:
    """A net, inputs, directions for both, and a gradient of the outputs."""

    def __init__(self, net, memory, number=0):
        self.net, self.memory, random = net, memory, np.random.default_rng(number)
        self.x, self.x_dot = random.normal(size=(2, BATCH, net.design.n_in))
        self.theta_dot = random.normal(size=net.theta.size)
        self.y_bar = random.normal(size=(BATCH, net.design.n_out))

    def gradient(self, memory):
        return self.net.gradient(self.x, end_gradient=self.y_bar, memory=memory_of(memory, self.net, len(self.x)))

    def outputs_at(self, length):
        moved = Net(self.net.design, self.net.theta + length * self.theta_dot)
        return moved(self.x + length * self.x_dot)


def run_of(case, number=None):
    number = ALL.index(case) if number is None else number
    return Run(net_of(*case[:3], number), case[3], number)


def kinked_run(case, number=None):
    number = KINKED.index(case) if number is None else number
    return Run(net_of(case[0], case[1], case[4], number, activation=case[2]), case[3], number)


def group_by_net(cases, factors):
    """The cases that differ in memory alone: one net, and one reference by autograd, serves them all."""
    groups = {}
    for case in cases:
        groups.setdefault(tuple(case[i] for i in factors), []).append(case)
    return [pytest.param(group, id=" ".join(key)) for key, group in groups.items()]


def check(run, within, is_smooth=True):
    """Adjoint identity, memory choices, and the Taylor slope where there is one."""
    found = run.gradient(run.memory)
    outputs, push = run.net.tangent(run.x, run.theta_dot, run.x_dot)
    np.testing.assert_array_equal(outputs, run.net(run.x))
    one, other = np.vdot(run.y_bar, push), np.vdot(found.theta, run.theta_dot) + np.vdot(found.x, run.x_dot)
    within("adjoint identity", abs(one - other) / (np.linalg.norm(run.y_bar) * np.linalg.norm(push)), IDENTITY)
    if is_smooth:
        lengths = np.array([1e-4, 5e-5])
        left = [np.linalg.norm(run.outputs_at(e) - outputs - e * push) for e in lengths]
        assert left[0] < 1e-12 * np.linalg.norm(outputs) or abs(np.log2(left[0] / left[1]) - 2) < NEAR
    stored = run.gradient("all")
    if run.memory == "reversible":
        within("gradients of undone steps, against stored", relative(found.theta, stored.theta), IDENTITY)
        within("gradients of undone steps, against stored", relative(found.x, stored.x), IDENTITY)
    else:
        np.testing.assert_array_equal(found.theta, stored.theta)
        np.testing.assert_array_equal(found.x, stored.x)
    near = run.net.linearise(run.x, memory=memory_of(run.memory, run.net, len(run.x)))
    np.testing.assert_array_equal(near.outputs, outputs)
    np.testing.assert_array_equal(near.tangent(run.theta_dot), run.net.tangent(run.x, run.theta_dot)[1])
    for _ in range(2):  # a run that is kept can be used again
        np.testing.assert_array_equal(near.pullback(run.y_bar), found.theta)


def check_autograd(runs, within, has_tangent=True):
    """Outputs, gradients and tangents of plain torch functions; the runs differ in memory alone."""
    import torch

    torch.set_num_threads(1)  # matrices are small
    run = runs[0]
    theta, x = torch.from_numpy(run.net.theta.copy()), torch.from_numpy(run.x.copy())
    shapes = run.net.design.shapes

    def outputs_of(theta, x):
        parts = torch.split(theta, [int(np.prod(shape)) for shape in shapes.values()])
        weights = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return torch_outputs(run.net, weights, x)

    theta.requires_grad_(), x.requires_grad_()
    outputs = outputs_of(theta, x)
    within("values, against torch", relative(run.net(run.x), outputs.detach().numpy()), AUTOGRAD)
    y_bar = torch.from_numpy(run.y_bar).requires_grad_()
    bars = torch.autograd.grad(outputs, (theta, x), y_bar, create_graph=has_tangent)
    for each in runs:
        found = each.gradient(each.memory)
        for one, other in zip((found.theta, found.x), bars, strict=True):
            within("gradients, against autograd", relative(one, other.detach().numpy()), AUTOGRAD)
    if not has_tangent:
        return
    # Gradients are linear in y_bar: their own pullback is the tangent.
    (push,) = torch.autograd.grad(bars, y_bar, (torch.from_numpy(run.theta_dot), torch.from_numpy(run.x_dot)))
    within(
        "tangents, against autograd",
        relative(run.net.tangent(run.x, run.theta_dot, run.x_dot)[1], push.numpy()),
        AUTOGRAD,
    )


def check_single(run, within):
    """float32 against float64 with the same numbers."""
    single = run.net.astype(np.float32)
    run.net.put(single.theta)
    for name in ("x", "x_dot", "theta_dot", "y_bar"):
        setattr(run, name, getattr(run, name).astype(np.float32).astype(float))
    wanted, found = (
        net.gradient(run.x, end_gradient=run.y_bar, memory=memory_of(memory, net, len(run.x)))
        for net, memory in ((run.net, "all"), (single, run.memory))
    )
    kind = "gradients of undone steps" if run.memory == "reversible" else "gradients"
    pushes = [net.tangent(run.x, run.theta_dot, run.x_dot)[1] for net in (single, run.net)]
    for name, one, other in (
        ("values", found.outputs, wanted.outputs), (kind, found.theta, wanted.theta), (kind, found.x, wanted.x),
        ("tangents", *pushes),
    ):  # fmt: skip
        assert one.dtype == np.float32
        error = relative(one, other)
        if error <= SINGLE[name] or name != "gradients":
            within(f"float32: {name}", error, SINGLE[name])
        else:
            within("float32: ill-conditioned gradients", error, ILL)
            within("float32: gradients, in units of what rounding the inputs changes", error / by_rounding(run), 3.0)


def by_rounding(run, tries=20):
    """How far the gradient moves, in double precision, when inputs and weights are rounded to single precision once."""
    random, half_a_unit = np.random.default_rng(0), np.finfo(np.float32).eps / 2

    def rounded(a):
        return a * (1 + half_a_unit * random.uniform(-1, 1, a.shape))

    def gradient(net, x, y_bar):
        return net.gradient(x, end_gradient=y_bar).theta

    there = gradient(run.net, run.x, run.y_bar)
    nearby = (
        gradient(Net(run.net.design, rounded(run.net.theta)), rounded(run.x), rounded(run.y_bar)) for _ in range(tries)
    )
    return max(relative(each, there) for each in nearby)


PRODUCT = "combinations of connectivity x dynamics x scheme x memory"
WITH_KINKS = "combinations of connectivity x dynamics x kinked activation x memory"


def test_chosen_cases_hold_every_pair():
    for few, all_ in ((FEW, ALL), (FEW_KINKED, KINKED)):
        assert set().union(*map(pairs_of, few)) == set().union(*map(pairs_of, all_))


@pytest.mark.parametrize("case", FEW, ids=" ".join)
def test_tangent_and_pullback_of_every_pair_of_factors(case, counted, within):
    check(run_of(case), within)
    counted(f"{PRODUCT}: tangents, pullbacks, Taylor slopes", " ".join(case), len(ALL))


@pytest.mark.parametrize("case", FEW, ids=" ".join)
def test_gradients_are_those_of_autograd_for_every_pair_of_factors(case, counted, within):
    check_autograd([run_of(case)], within, has_tangent=False)  # tangents belong to them by the adjoint identity
    counted(f"{PRODUCT}: autograd", " ".join(case), len(ALL))


@pytest.mark.parametrize("case", FEW, ids=" ".join)
def test_single_precision_of_every_pair_of_factors(case, counted, within):
    check_single(run_of(case), within)
    counted(f"{PRODUCT}: float32", " ".join(case), len(ALL))


@pytest.mark.slow
@pytest.mark.parametrize("cases", group_by_net(REST, (0, 1, 2)))
def test_derivatives_of_the_full_product(cases, counted, within):
    number = ALL.index(cases[0])
    check_autograd([run_of(case, number) for case in cases], within)
    for case in cases:
        check(run_of(case, number), within)
        check_single(run_of(case, number), within)
        for what in ("tangents, pullbacks, Taylor slopes", "autograd", "float32"):
            counted(f"{PRODUCT}: {what}", " ".join(case), len(ALL))


def check_kinked(cases, counted, within):
    number = KINKED.index(cases[0])
    check_autograd([kinked_run(case, number) for case in cases], within)
    for case in cases:
        check(kinked_run(case, number), within, is_smooth=False)
        counted(f"{WITH_KINKS}: tangents, pullbacks, autograd", " ".join(case), len(KINKED))


@pytest.mark.parametrize("case", FEW_KINKED, ids=" ".join)
def test_derivatives_with_kinks_of_every_pair_of_factors(case, counted, within):
    check_kinked([case], counted, within)


@pytest.mark.slow
@pytest.mark.parametrize("cases", group_by_net(REST_KINKED, (0, 1, 2, 4)))
def test_derivatives_with_kinks_of_the_full_product(cases, counted, within):
    check_kinked(cases, counted, within)


@pytest.mark.parametrize("case", JOINED, ids=" ".join)
def test_derivatives_through_joined_blocks(case, counted, within):
    """Opening, blocks, joins and read-out in one chain."""
    name, memory = case
    run = Run(scattered(SEVERAL[name][0]()), memory)
    check(run, within, is_smooth="elu" not in name)
    check_autograd([run], within)
    check_single(run, within)
    counted("nets of several blocks x memory", " ".join(case), len(JOINED))


def test_gauss_newton_product_is_symmetric_and_that_of_the_jacobian():
    net, random = net_of("dense", "residual", "rk4", steps=4), np.random.default_rng(0)
    x, (v, w) = random.normal(size=(3, 5)), random.normal(size=(2, net.theta.size))
    J = np.stack([net.tangent(x, e)[1].ravel() for e in np.eye(net.theta.size)], axis=1)
    assert relative(net.gauss_newton(x, v), J.T @ (J @ v)) < IDENTITY
    weighted = net.gauss_newton(x, v, lambda push: 3.0 * push)
    assert abs(w @ weighted - v @ net.gauss_newton(x, w, lambda push: 3.0 * push)) < 1e-10 * abs(w @ weighted)


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
    near, other = net.linearise(x), net.linearise(x + 1)
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
    assert told.refine().memory == "reversible"
    assert not told._execution._free  # nothing was kept


@pytest.mark.parametrize("size", [1, 2, 3, 7, STEPS - 1, STEPS])
def test_segments_of_any_length_are_reversed(size, monkeypatch):
    """The last of them may be a single step."""
    monkeypatch.setattr(stage_sweeps, "choose_block", lambda stage, groups: size)
    require_stored("segments", net_of("graph", "hamiltonian", "yoshida4", number=1))


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("scheme", ["symplectic_euler_kick", "verlet", "yoshida4"])
def test_few_steps_are_reversed(scheme, steps):
    require_stored("reversible", net_of("dense", "hamiltonian", scheme, number=1, steps=steps))


def test_every_step_that_can_be_undone_leaves_its_record():
    """What the reverse run reads of a step is found again when the step is undone, for the whole catalogue."""
    count = 0
    for dynamics in ("residual", "hamiltonian", "hyperbolic", "staggered"):
        field = field_of("dense", dynamics)
        for name in FIXED_STEPS:
            try:
                block = Block(field, name, STEPS)
            except (TypeError, ValueError):
                continue  # a scheme for fields of another kind
            if block.scheme_program.back is not None:
                require_stored("reversible", Net(Design((block,)), seed=count))
                count += 1
    print(f"{count} pairs of dynamics and scheme undone")
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
        (stage,) = (each.fit_group_size(1) for each in net._execution.stages)
        sizes.append(sum(workspace.memory.nbytes for workspace in stage._free))
        stored = stage.count_stored_bytes(1)
    assert sizes[1] <= sizes[0] < stored
