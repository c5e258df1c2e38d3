"""Certificates of nets: bounds are never below what is measured, and tight where theory says so."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet.fields import activation
from stepnet.nets import Block, Design, Net
from stepnet.stability import certificate
from stepnet.stability.activation_ranges import SLOPES, Interval, find_slope_range, find_value_range
from stepnet.stability.jacobian_bounds import Ball, build_linear_parts, push_through_chain

SMALL, NARROW = 1e-8, 1e-4  # the size of a box, and the spread of slopes in it times the depth
SAMPLED = 0.02  # 2001 samples of an interval miss extrema and jumps by less, and steepest slopes are rounded
ROUNDING = 1 + 1e-9  # of measured amplification: that of kernels and of the power iteration
ACTIVATIONS = ("tanh", "relu", "gelu", "selu", "silu", "elu", "sigmoid", "softplus", "leaky_relu")
X = np.random.default_rng(5).normal(size=(5, 3))
quiet = {"workers": 1}

NETS = {
    "resnet": lambda **how: sn.nets.resnet(3, 2, 6, 5, **how),
    "rk4": lambda **how: sn.nets.resnet(3, 2, 6, 4, scheme="rk4", degree=1, **how),
    "dopri5": lambda **how: sn.nets.resnet(3, 2, 6, 3, scheme="dopri5", **how),
    "antisymmetric": lambda **how: sn.nets.antisymmetric(3, 2, 6, 8, **how),
    "parabolic": lambda **how: sn.nets.parabolic(3, 2, 6, 5, **how),
    "parabolic rk4": lambda **how: sn.nets.parabolic(3, 2, 6, 5, scheme="rk4", **how),
    "hamiltonian": lambda **how: sn.nets.hamiltonian(3, 2, 6, 6, **how),
    "hamiltonian spline": lambda **how: sn.nets.hamiltonian(3, 2, 6, 6, degree=1, **how),
    "hyperbolic": lambda **how: sn.nets.hyperbolic(3, 2, 6, 6, **how),
    "midpoint": lambda **how: sn.nets.midpoint_net(3, 2, 6, 6, **how),
    "leapfrog": lambda **how: sn.nets.leapfrog_net(3, 2, 6, 6, **how),
    "mlp": lambda **how: sn.nets.mlp(3, 2, 6, 3, **how),
    "normalised": lambda **how: sn.nets.resnet(3, 2, 6, 3, norm="layer", **how),
}


def certified(name, seed):
    net = NETS[name](seed=seed, activation=ACTIVATIONS[seed % len(ACTIVATIONS)], **quiet)
    return certificate(net, X * 10.0 ** (seed % 3 - 1), iterations=15)


@pytest.mark.parametrize("name", NETS)
def test_bounds_are_never_below_measured_amplification(name):
    """Over activations, weights and sizes of inputs; 200 nets in the slow test."""
    for seed in range(5):
        check_bounds(certified(name, seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_bounds_are_never_below_measured_amplification_of_many_nets(name):
    for seed in range(5, 21):
        check_bounds(certified(name, seed))


def check_bounds(found):
    assert 0 < found.measured <= found.lipschitz * ROUNDING
    for block in found.blocks:
        assert block.lower <= block.measured * ROUNDING
        assert 0 < block.measured <= block.upper * ROUNDING
        assert block.upper <= np.prod(block.steps) * ROUNDING or np.isnan(block.steps).all()


@pytest.mark.parametrize("name", ["antisymmetric", "hamiltonian"])
def test_bounds_are_within_ten_times_of_what_is_measured(name):
    blocks = [certified(name, seed).blocks[0] for seed in range(10)]
    ratios = [block.upper / block.measured for block in blocks]
    assert np.quantile(ratios, 0.9) < 10


def test_a_convolutional_net_of_two_blocks_is_bounded():
    net = sn.nets.parabolic_cnn((4, 4), (2, 3), 2, outputs=2, **quiet)
    found = certificate(net, np.random.default_rng(1).normal(size=(3, 16)), iterations=15)
    assert [block.name for block in found.blocks] == ["blocks.0", "blocks.1"]
    check_bounds(found)


def test_a_linear_step_has_the_norm_of_its_matrix():
    """With the identity as activation balls have no radius: forward Euler is I + hK."""
    K = np.random.default_rng(2).normal(size=(4, 4))
    net = Net(Design((Block(sn.fields.residual(sn.fields.dense(4), "identity"), "euler", 1, 0.5),)), **quiet)
    net.weights["blocks.0.K"][...] = K
    (block,) = certificate(net, np.ones((1, 4)), iterations=300).blocks
    sizes = np.linalg.svd(np.eye(4) + 0.5 * K, compute_uv=False)
    assert block.upper == pytest.approx(sizes[0], rel=1e-12)
    assert block.lower == pytest.approx(sizes[-1], rel=1e-6)  # from a Gram matrix
    assert block.measured == pytest.approx(sizes[0], rel=1e-6)


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
def test_a_parabolic_net_within_its_limit_never_amplifies(activation):
    """Ruthotto & Haber (2020): I - h K' D K is symmetric, with eigenvalues from 1 - h |K|^2 to 1."""
    net = sn.nets.parabolic(3, 2, 6, 10, activation=activation, initialisation="stable", **quiet)
    found = certificate(net)
    assert found.blocks[0].upper == 1.0
    assert found.is_stable
    assert found.verdict.startswith("stable")


def test_a_parabolic_net_beyond_its_limit_grows_by_its_norm():
    net = sn.nets.parabolic(None, None, 4, 1, length=3.0, activation="identity", **quiet)
    K = net.weights["blocks.0.K"]
    K[...] = 2 * np.eye(4)
    (block,) = certificate(net, np.ones((1, 4))).blocks
    assert block.upper == pytest.approx(11.0)  # |1 - 3 * 4|
    assert block.measured == pytest.approx(11.0)


def test_a_safe_step_is_safe_and_close_to_the_largest():
    net = sn.nets.antisymmetric(3, 2, 8, 20, length=20.0, **quiet)
    found = certificate(net, limit=5.0)
    (block,) = found.blocks
    assert not found.is_stable
    assert 0 < block.safe_h < block.h
    assert "blocks.0" in found.verdict
    assert f"{block.safe_h:.3g}" in found.verdict

    def upper(h):
        shorter = sn.nets.antisymmetric(3, 2, 8, 20, length=20 * h, **quiet)
        shorter.put(net.theta)
        return certificate(shorter, limit=5.0).blocks[0].upper

    assert upper(block.safe_h) <= 5 * ROUNDING
    assert upper(1.2 * block.safe_h) > 5


def test_text_has_a_line_for_each_block_and_the_whole_net():
    lines = str(certificate(NETS["hamiltonian"](**quiet), X)).splitlines()
    assert len(lines) == 3
    assert "Lipschitz" in lines[-1]


# ---- inputs in a box ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
def test_bounds_in_a_box_lie_between_measured_ones_and_those_for_all_inputs(name):
    random = np.random.default_rng(3)
    for seed, size in ((0, 0.03), (1, 0.5), (4, 0.1), (5, 2.0)):
        net = NETS[name](seed=seed, activation=ACTIVATIONS[seed], **quiet)
        centre = random.normal(size=3)
        x = centre + size * random.uniform(-1, 1, (10, 3))
        found = certificate(net, x, box=(centre - size, centre + size), iterations=15)
        check_bounds(found)
        assert found.lipschitz <= certificate(net).lipschitz * ROUNDING
        assert found.verdict.endswith("for inputs in the box")


@pytest.mark.parametrize("name", ["resnet", "dopri5", "parabolic", "hamiltonian", "hyperbolic", "leapfrog"])
def test_bounds_in_a_small_box_are_what_is_measured(name):
    net = NETS[name](seed=3, activation="tanh", **quiet)
    (block,) = certificate(net, X[:1], box=(X[0] - SMALL, X[0] + SMALL), iterations=300).blocks
    assert block.upper == pytest.approx(block.measured, rel=NARROW)


@pytest.mark.parametrize("name", SLOPES)
def test_ranges_of_activations_hold_all_values_and_slopes_and_no_more(name):
    act = activation(name)
    ends = np.sort(np.random.default_rng(1).normal(scale=3.0, size=(2, 200)), axis=0)
    u = ends[0] + np.linspace(0, 1, 2001)[:, None] * (ends[1] - ends[0])
    for found, seen in ((find_value_range(act, Interval(*ends)), act.value(u)),
                        (find_slope_range(act, Interval(*ends)), act.derivative(u))):  # fmt: skip
        assert (found.low <= seen.min(axis=0)).all()
        assert (seen.max(axis=0) <= found.high).all()
        assert (found.high - found.low <= np.ptp(seen, axis=0) + SAMPLED).all()
        low, high = SLOPES[name]
    assert low <= found.low.min() + ROUNDING - 1
    assert found.high.max() <= high + ROUNDING - 1


def test_time_as_an_input_moves_the_range():
    """Slopes of tanh(K y + b + t c) with a large c are small late, and so not before."""
    chain = sn.fields.mlp((2, 2), "tanh", has_time=True)
    net = Net(Design((Block(sn.fields.chained(chain), "euler", 10, 2.0),)), **quiet)
    for name, value in net.weights.items():
        value[...] = (
            3.0 if name.endswith("c1") else np.reshape(np.random.default_rng(0).normal(size=value.size), value.shape)
        )
    x = np.random.default_rng(2).uniform(-0.1, 0.1, (20, 2))
    found = certificate(net, x, box=(-0.1, 0.1))
    check_bounds(found)


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_a_normalisation_and_an_activation_after_it_are_in_their_ball(name):
    """D J is not symmetric, although both factors are: the balls of both are applied in turn."""
    layers = sn.fields.residual(sn.fields.dense(4), name, norm="layer").chain(0)
    weights = {"K": np.eye(4), "b": np.zeros(4)}
    random, ball = np.random.default_rng(0), Ball(np.eye(4), 0.0)
    centre, radius = push_through_chain(build_linear_parts(layers, weights), 1.0, ball)
    low, high = SLOPES[name]
    for _ in range(200):
        Q = np.linalg.qr(random.normal(size=(4, 4)))[0]
        J = Q @ np.diag(random.integers(0, 2, 4) * 1e-3**-0.5) @ Q.T
        D = np.diag(random.choice([low, high], 4))
        assert np.linalg.norm(D @ J - centre, 2) <= radius * ROUNDING


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: certificate(NETS["resnet"](), box=3.0), TypeError, "`box` must be a pair"),
        (lambda: certificate(NETS["resnet"](), box=(1.0, 0.0)), ValueError, "`box` must have finite lowest"),
        (lambda: certificate(NETS["resnet"](), box=(np.zeros(2), 1.0)), ValueError, "arrays of 3 features"),
        (lambda: certificate(NETS["resnet"](), box=(0.0, np.nan)), ValueError, "`box` must have finite"),
        (lambda: certificate(NETS["resnet"](), X, box=(0.0, 0.1)), ValueError, "`x` must be inputs in the `box`"),
        (lambda: certificate(NETS["resnet"](diffusion=0.1), box=(0.0, 1.0)), ValueError, "`net` must have no noise"),
        (lambda: certificate(NETS["resnet"](scheme="implicit_midpoint")), ValueError, "must have explicit schemes"),
        (lambda: certificate(sn.nets.attention_net(4, 2, 2)), ValueError, "`net` must have layers with bounded"),
        (lambda: certificate("net"), TypeError, "`net` must be a Net"),
        (lambda: certificate(NETS["resnet"](), limit=0.5), ValueError, "`limit`"),
        (lambda: certificate(NETS["resnet"](), np.ones((2, 7))), ValueError, "`x`"),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_noise_that_depends_on_the_state_has_no_bound():
    """Additive noise leaves Jacobians as they are."""
    kinds = sn.fields.diffusion
    plain, free = (certificate(sn.nets.resnet(2, 2, 4, 5, diffusion=noise, workers=1)) for noise in (None, 0.2))
    assert free.lipschitz == pytest.approx(plain.lipschitz)
    assert np.isfinite(certificate(sn.nets.resnet(2, 2, 4, 5, diffusion=kinds.per_channel((4,), 0.2))).lipschitz)
    for noise in (kinds.multiplicative((4,), 0.2), kinds.state_dependent(sn.fields.dense(4), 0.2)):
        with pytest.raises(ValueError, match="`net` must have noise that does not depend on the state"):
            certificate(sn.nets.resnet(2, 2, 4, 5, diffusion=noise, workers=1))
