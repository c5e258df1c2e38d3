"""Inputs recovered from outputs: reversible nets invert their steps; running other nets backward fails.

Chang et al. (2018), Reversible architectures, state that Hamiltonian, leapfrog and midpoint nets are reversible, and
have nets of 74, 218 and 1202 layers.  The table is ours: 32 features, 64 samples, K of unit scale, no bias; in brackets
what an earlier script of ours found with other weights.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import stepnet as sn
from stepnet import fields, nets
from stepnet.engines.numba_engine.layers import stage_sweeps
from stepnet.nets import Block, Design, Net
from stepnet.nets.execution import tile, untile

WIDTH, BATCH, SEED = 32, 64, 3
UNDONE = 1e-11  # of 1202 layers in float64
SINGLE = 1e-5  # of 1202 Hamiltonian layers in float32 at h = 0.02
LOST = 1e-3  # a step of Euler is undone by one with -h up to h^2: no rounding error

REVERSIBLE = {"Hamiltonian": nets.hamiltonian, "leapfrog": nets.leapfrog_net, "midpoint": nets.midpoint_net}
BACKWARD = {
    "ResNet backward": lambda sign, activation: fields.affine(fields.dense(WIDTH), activation, sign),
    "parabolic backward": lambda sign, activation: fields.symmetric(fields.dense(WIDTH), activation, -sign),
}
ROWS = {  # layers, h, activation, precision: what an earlier script found of these five
    (74, 0.1, "tanh", "float64"): (5e-16, 3e-15, 5e-16, 3.9e-2, 0.69),
    (218, 0.1, "tanh", "float64"): (2e-15, 1e-14, 1e-15, 7.7e-2, 1.0),
    (1202, 0.1, "tanh", "float64"): (2e-13, 2e-12, 2e-14, 0.41, 1.0),
    (1202, 0.1, "relu", "float64"): (3e-13, 4e-12, 2e24, 4e37, 1.4),
    (1202, 0.1, "tanh", "float32"): (1.3e-4, 1.8e-3, 1.3e-5, 0.42, 1.0),
    (1202, 0.02, "tanh", "float32"): (1.0e-6, 3.5e-5, 5.6e-7, 6.7e-3, 0.49),
}


def unit_weights(net, random):
    for name, weights in net.weights.items():
        weights[...] = 0.0 if name.endswith(".b") else random.normal(size=weights.shape) / np.sqrt(WIDTH)


def distance(found, wanted) -> float:
    """Relative; states that are no numbers any more are infinitely far."""
    found, wanted = found.astype(float), wanted.astype(float)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) if np.isfinite(found).all() else np.inf


def undone(preset, steps, h, activation, dtype) -> float:
    """Distance of the first state from where a reversible gradient ends that has undone all steps."""
    net = preset(None, None, WIDTH, steps, length=steps * h, activation=activation, dtype=dtype)
    random = np.random.default_rng(SEED)
    unit_weights(net, random)
    execution, (number, _) = net._execution, net._block(0)
    x = tile(execution.run_to_stage(net.theta, random.normal(size=(BATCH, net.design.n_in)).astype(dtype), number))
    stage, own = execution.stages[number], execution.split_parameters(net.theta)[number]
    run = stage_sweeps.sweep(stage, own, np.zeros_like(own), x, "reversible")
    run.send(np.zeros_like(next(run)))
    stage = stage.fit_group_size(len(x))
    (workspace,) = (workspace for workspace in stage._free if workspace.period == stage_sweeps.RING)
    wanted = stage.run_opening(own, stage.build_rows(x))
    found = stage.records(workspace)[stage.n_opening % workspace.period, :, : wanted.shape[1]]
    return distance(*(untile(stage.extract_state(carry, 1), BATCH) for carry in (found, wanted)))


def run_backward(chain_of, steps, h, activation, dtype) -> float:
    """Distance of the input from where the net comes to that takes the same steps with -h, the last of them first."""
    there, back = (
        Net(Design((Block(fields.chained(chain_of(sign, activation)), "euler", steps, steps * h),)), dtype=dtype)
        for sign in (1.0, -1.0)
    )
    random = np.random.default_rng(SEED)
    unit_weights(there, random)
    for name, weights in back.weights.items():
        weights[...] = there.weights[name][::-1]
    x = random.normal(size=(BATCH, WIDTH)).astype(dtype)
    return distance(back(there(x)), x)


@pytest.fixture(scope="module")
def table():
    found = {}
    with np.errstate(all="ignore"):
        for row in ROWS:
            steps, h, activation, dtype = row
            for name, preset in REVERSIBLE.items():
                found[name, *row] = undone(preset, steps, h, activation, np.dtype(dtype))
            for name, chain_of in BACKWARD.items():
                found[name, *row] = run_backward(chain_of, steps, h, activation, np.dtype(dtype))
    return found


COLUMNS = (*REVERSIBLE, *BACKWARD)


def test_table_of_reconstruction(table):
    """Nothing is lost but digits where steps are undone; much is where a net is run backward, in any precision."""
    print("\nrelative error of the input recovered from the output: measured (by an earlier script of ours)")
    print(" " * 26 + "".join(f"{name:>22}" for name in COLUMNS))
    for row, earlier in ROWS.items():
        cells = (f"{table[name, *row]:.1e} ({before:.1e})" for name, before in zip(COLUMNS, earlier, strict=True))
        print(f"{row[0]:5d} {row[1]:5} {row[2]:5} {row[3]:8}" + "".join(f"{cell:>22}" for cell in cells))
    assert not np.isnan(list(table.values())).any()
    for row in ROWS:
        for name in BACKWARD:
            assert table[name, *row] > LOST


@pytest.mark.parametrize("row", [row for row in ROWS if row[3] == "float64"], ids=str)
def test_layers_are_undone_to_rounding(table, row, within):
    names = ("Hamiltonian", "leapfrog") if row[2] == "relu" else REVERSIBLE
    for name in names:
        within("input recovered through up to 1202 reversible layers", table[name, *row], UNDONE)


def test_position_and_velocity_are_undone_to_rounding(within):
    for activation in ("tanh", "relu"):
        error = undone(nets.hyperbolic, 1202, 0.1, activation, np.float64)
        within("input recovered through up to 1202 reversible layers", error, UNDONE)


def test_single_precision_is_enough_for_small_steps_of_hamiltonian_nets(table, within):
    within(
        "float32: input recovered through 1202 Hamiltonian layers, h = 0.02",
        table["Hamiltonian", 1202, 0.02, "tanh", "float32"],
        SINGLE,
    )
    velocity = undone(nets.hyperbolic, 1202, 0.1, "tanh", np.float32)
    assert velocity < table["leapfrog", 1202, 0.1, "tanh", "float32"]  # 2 y - y_ loses digits


def test_reversibility_is_not_stability(table):
    """The midpoint net is reversible by its algebra, but with ReLU states and rounding errors grow without bound."""
    net = nets.midpoint_net(None, None, WIDTH, 1202, length=120.2, activation="relu")
    random = np.random.default_rng(SEED)
    unit_weights(net, random)
    x = random.normal(size=(BATCH, WIDTH))
    growth, error = np.linalg.norm(net(x)) / np.linalg.norm(x), table["midpoint", 1202, 0.1, "relu", "float64"]
    print(f"midpoint with ReLU, 1202 layers: states grow by {growth:.0e} (1e+21), error {error:.0e} (2e+24)")
    assert 1e15 < growth < np.inf
    assert error > 1e15  # infinite would do, NaN would not
    assert table["midpoint", 1202, 0.1, "tanh", "float64"] < UNDONE


def gradients(net, x, memories=("all", "reversible")) -> list[np.ndarray]:
    """By the parameters and the inputs, in every memory."""
    found = [net.gradient(x, end_gradient=np.ones_like(net(x)), memory=memory) for memory in memories]
    return [np.concatenate((each.theta, each.x.ravel())) for each in found]


@pytest.mark.parametrize(("dtype", "bound"), [("float64", UNDONE), ("float32", 1e-3)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_gradients_from_reconstructed_states_agree_with_stored_ones_over_1202_layers(activation, dtype, bound, within):
    """To the order of the states, without a warning."""
    net = nets.hamiltonian(None, None, WIDTH, 1202, length=120.2, activation=activation, dtype=dtype)
    unit_weights(net, np.random.default_rng(4))
    x = np.random.default_rng(5).normal(size=(8, WIDTH))
    stored, found = (net.gradient(x, end_gradient=x, memory=memory).theta for memory in ("all", "reversible"))
    error = np.linalg.norm(found - stored) / np.linalg.norm(stored)
    within(f"{dtype}: gradients of 1202 undone Hamiltonian layers", error, bound)


def growing(preset=nets.midpoint_net, steps=1202, dtype="float64", activation="relu", h=0.1, **options) -> Net:
    """A net whose rounding errors grow when its steps are undone."""
    net = preset(None, None, WIDTH, steps, length=steps * h, activation=activation, dtype=dtype, **options)
    unit_weights(net, np.random.default_rng(SEED))
    return net


DRIFTING = {
    "midpoint, relu": lambda: growing(),
    "midpoint, relu, float32": lambda: growing(steps=400, dtype="float32"),
    "Hamiltonian, tanh, float32": lambda: growing(nets.hamiltonian, dtype="float32", activation="tanh", h=0.4),
    "Hamiltonian, relu, float32": lambda: growing(nets.hamiltonian, dtype="float32", h=0.4),
    "leapfrog, tanh, float32": lambda: growing(nets.leapfrog_net, dtype="float32", activation="tanh"),
}


@pytest.mark.parametrize("samples", [8, 300])  # one chunk, several
@pytest.mark.parametrize("make", DRIFTING.values(), ids=list(DRIFTING))
def test_states_that_cannot_be_reconstructed_are_noticed_and_stored(make, samples):
    net, x = make(), np.random.default_rng(5).normal(size=(samples, make().design.n_in))
    with np.errstate(all="ignore"), pytest.warns(sn.AdjointWarning, match="missed the initial state by"):
        stored, found = gradients(net, x)
    assert np.array_equal(found, stored)


def test_drift_in_one_of_several_blocks_is_noticed():
    first, second = growing(nets.hamiltonian, 6), growing()
    net = Net(Design((first.design.blocks[0], second.design.blocks[0])), np.concatenate((first.theta, second.theta)))
    with np.errstate(all="ignore"), pytest.warns(sn.AdjointWarning):
        stored, found = gradients(net, np.random.default_rng(5).normal(size=(8, WIDTH)))
    assert np.array_equal(found, stored)


def test_one_large_sample_does_not_hide_the_drift_of_others():
    net, x = DRIFTING["Hamiltonian, tanh, float32"](), np.random.default_rng(5).normal(size=(8, WIDTH))
    x[3] *= 1e6
    with pytest.warns(sn.AdjointWarning):
        stored, found = gradients(net, x)
    assert np.array_equal(found, stored)


@pytest.mark.parametrize("factor", [0.0, 1e-9])
def test_small_samples_are_measured_by_the_others(factor):
    """A sample that begins near zero, and is moved by biases, is not far from where it began."""
    net, x = nets.hamiltonian(None, None, WIDTH, 40, length=4.0), np.random.default_rng(5).normal(size=(8, WIDTH))
    net.put(np.random.default_rng(6).normal(size=net.theta.size) / WIDTH**0.5)
    x[3] *= factor
    stored, found = gradients(net, x)
    assert distance(found, stored) < UNDONE


def test_reconstruction_takes_no_memory_for_depth():
    """Beyond the gradient itself; 16 times as many steps."""

    def peak(steps: int) -> int:
        net = nets.hamiltonian(None, None, WIDTH, steps, length=steps * 0.01, workers=1)
        x = np.random.default_rng(5).normal(size=(256, WIDTH))
        net.gradient(x, end_gradient=x, memory="reversible")
        tracemalloc.start()
        net.gradient(x, end_gradient=x, memory="reversible")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found - 2 * net.theta.nbytes

    assert peak(640) < 1.1 * peak(40)


def test_net_solved_back_in_time_is_not_the_inverse_of_a_resnet():
    net = nets.resnet(None, None, 8, 100, length=10.0)
    net.put(np.random.default_rng(10).normal(size=net.theta.size) / 2)
    x = np.random.default_rng(11).normal(size=(3, 8))
    problem = net.problem(x)
    end = sn.solve(problem, "euler", steps=100, save_every=0).y[-1]
    back = sn.solve(sn.ODE(problem.fun, end, problem.t_span[::-1], trace=False), "euler", steps=100, save_every=0).y[-1]
    assert np.linalg.norm(back - problem.y0) > LOST * np.linalg.norm(problem.y0)
