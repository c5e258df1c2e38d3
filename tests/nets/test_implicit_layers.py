"""Layers of implicit schemes: the plain problem, derivatives under every memory, bits in company, large steps."""

from __future__ import annotations

import numpy as np
import pytest
from fields.zoo import SQUARE
from nets.cases import SPLINES, field_of, net_of
from nets.test_derivatives import Run, check, short_segments  # noqa: F401  the fixture gives short segments
from nets.test_meaning import derived

import stepnet as sn
from stepnet import fields, nets
from stepnet.engines.numba_engine.layers.implicit import implicit_systems
from stepnet.engines.numba_engine.layers.implicit.implicit_stages import NewtonError
from stepnet.nets import Block, Design, Net

STEPS = 4
SCHEMES = ("implicit_euler", "gauss4", "trbdf2", "implicit_midpoint", "radau5", "sdirk2", "trapezoid", "kvaerno5")
DYNAMICS = ("parabolic", "residual", "antisymmetric")
MEMORIES = ("all", "few", "segments", "bytes")
EQUAL = 1e-11  # Newton's iteration of the plain problem ends a little earlier
COMPANY = 70  # samples: two tiles, one of which is not full


def dynamics_of(connectivity, number):
    possible = [each for each in DYNAMICS if each != "antisymmetric" or isinstance(SQUARE[connectivity], fields.Mixing)]
    return possible[number % len(possible)]


def cases_at(offset):
    """Each connectivity once, with dynamics, schemes and memory in turn."""
    return [
        (K, dynamics_of(K, i + offset), SCHEMES[(i + offset) % len(SCHEMES)], MEMORIES[(i + offset) % len(MEMORIES)])
        for i, K in enumerate(SQUARE)
    ]


FEW = cases_at(0)
REST = [case for offset in range(1, len(SCHEMES)) for case in cases_at(offset)]
ALL = [pytest.param(case, id=" ".join(case)) for case in FEW]
ALL += [pytest.param(case, id=" ".join(case), marks=pytest.mark.slow) for case in REST]


@pytest.fixture(params=["dense", "krylov"])
def systems(request, monkeypatch):
    """Both kinds of linear systems for the same nets."""
    if request.param == "krylov":
        monkeypatch.setattr(implicit_systems, "MOST_DENSE", 0)


@pytest.mark.parametrize("case", ALL)
def test_states_are_those_of_the_plain_problem_and_gradients_are_theirs(case, within):
    number = (FEW + REST).index(case)
    net = net_of(*case[:3], number, steps=STEPS, degrees=SPLINES)
    x = np.random.default_rng(number).normal(size=(3, net.design.n_in))
    solution = sn.solve(net.problem(x), case[2], steps=STEPS)
    wanted = solution.y.reshape(STEPS + 1, net.design.n_in, 3).swapaxes(1, 2)
    found = net.features(x)
    within("implicit layers, against the plain problem", np.abs(found - wanted).max() / np.abs(wanted).max(), EQUAL)
    check(Run(net_of(*case[:3], number, steps=STEPS), case[3], number), within)


@pytest.mark.parametrize(("connectivity", "scheme", "dtype"), [
    ("dense", "gauss4", "float64"), ("graph", "trbdf2", "float32"), ("attention", "implicit_euler", "float64"),
])  # fmt: skip
@pytest.mark.usefixtures("systems")
def test_bits_of_a_sample_do_not_depend_on_its_company(connectivity, scheme, dtype):
    net, random = net_of(connectivity, "parabolic", scheme, 1, dtype=dtype, steps=2), np.random.default_rng(1)
    given = random.normal(size=(3, COMPANY, net.design.n_in)).astype(dtype)
    if connectivity != "attention":  # some samples need more iterations than others
        net.put(2 * net.theta)
        given[0] *= random.uniform(0.1, 10, size=(COMPANY, 1)).astype(dtype)
    rows, order = derived(net, *given), random.permutation(COMPANY)
    assert np.isfinite(rows).all()
    np.testing.assert_array_equal(derived(net, *given[:, order]), rows[order])
    np.testing.assert_array_equal(derived(net, *given[:, 7:8]), rows[7:8])
    np.testing.assert_array_equal(derived(net, *np.tile(given, (1, 5, 1)))[4 * COMPANY :], rows)


@pytest.mark.usefixtures("systems")
def test_krylov_and_dense_systems_give_the_same_derivatives(within):
    check(Run(net_of("chebyshev", "antisymmetric", "radau5", 2, steps=STEPS), "few", 2), within)
    check(Run(net_of("causal", "parabolic", "trbdf2", 1, steps=STEPS), "segments", 1), within)


def stiff_net(scheme, activation="leaky_relu"):
    """Steps 500 times as long as explicit Euler's limit h |K|^2 <= 2."""
    block = Block(fields.parabolic(fields.dense(6), activation), scheme, 8, 8.0)
    net = Net(Design((block,)), seed=3)
    K = net.weights["blocks.0.K"]
    K[...] *= (1000.0**0.5 / np.linalg.norm(K, 2, axis=(1, 2)))[:, None, None]
    return net


@pytest.mark.parametrize("activation", ["leaky_relu", "tanh", "softplus"])
def test_parabolic_layers_contract_with_any_step(activation):
    """|y - z| does not grow, as s is monotone; explicit Euler blows up."""
    net, random = stiff_net("implicit_euler", activation), np.random.default_rng(2)
    net.weights["blocks.0.b"][...] = random.normal(size=net.weights["blocks.0.b"].shape)
    x, z = random.normal(size=(2, 20, 6))
    distances = np.linalg.norm(net.features(x) - net.features(z), axis=2)
    assert (distances[1:] <= distances[:-1] * (1 + EQUAL)).all()
    if activation == "leaky_relu":
        explicit = Net(stiff_net("euler").design, net.theta)
        assert np.linalg.norm(explicit(x) - explicit(z)) > 1e9 * np.linalg.norm(net(x) - net(z))


def test_stages_that_have_no_solution_are_reported():
    """z = y + 2 softplus(z) has no solution for y > -1.38...; other samples have one."""
    net = Net(Design((Block(fields.residual(fields.dense(1), "softplus"), "implicit_euler", 2, 4.0),)))
    net.weights["blocks.0.K"][...] = 1.0
    assert np.isfinite(net([[-9.0]])).all()
    with pytest.raises(NewtonError, match=r"step 0 of blocks\.0 were not solved .* residual of [0-9.e-]+"):
        net([[-9.0], [10.0], [-9.0]])


def test_noise_follows_implicit_steps_and_is_differentiated():
    noise, x = nets.SampleNoise(seed=4), np.random.default_rng(5).normal(size=(3, 4))
    build = lambda sigma: nets.parabolic(None, None, 4, 1, scheme="implicit_euler", diffusion=sigma, length=2.0)
    noisy, still = build(0.3), build(0.0)
    resting = Net(noisy.design, 0 * noisy.theta)
    np.testing.assert_allclose(noisy(x, noise=noise) - still(x), resting(x, noise=noise) - x, atol=1e-14)
    net = nets.parabolic(
        None, None, 4, 3, scheme="sdirk2", diffusion=fields.diffusion.state_dependent(fields.dense(4), 0.5)
    )
    random = np.random.default_rng(6)
    theta_dot, x_dot, y_bar = random.normal(size=net.theta.size), *random.normal(size=(2, 3, 4))
    push = net.tangent(x, theta_dot, x_dot, noise=noise)[1]
    for memory in ("all", sn.Checkpoints(1)):
        found = net.gradient(x, end_gradient=y_bar, noise=noise, memory=memory)
        pull = np.vdot(found.theta, theta_dot) + np.vdot(found.x, x_dot)
        assert abs(np.vdot(y_bar, push) - pull) < 1e-12 * np.linalg.norm(y_bar) * np.linalg.norm(push)


def test_nets_are_stored_refined_run_in_parallel_and_of_several_blocks(tmp_path):
    blocks = (Block(field_of("dense", "parabolic"), "gauss4", 4), Block(field_of("dense", "residual"), "rk4", 4),
              Block(field_of("dense", "antisymmetric"), "implicit_euler", 4))  # fmt: skip
    net, x = Net(Design(blocks), seed=2, workers=2), np.random.default_rng(3).normal(size=(300, 5))
    net.save(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(nets.load(tmp_path / "net.safetensors")(x), net(x))
    np.testing.assert_array_equal(Net(net.design, net.theta, workers=1)(x), net(x))
    found, wanted = (net.gradient(x, end_gradient=x, memory=each) for each in (10**6, "all"))
    np.testing.assert_array_equal(found.theta, wanted.theta)
    assert nets.mgrit_forward(net, x[:3], nets.MGRIT(coarsening=2), is_compared=True).error < 1e-10
    with pytest.raises(ValueError, match="reversible"):
        net.gradient(x, end_gradient=x, memory="reversible")
    with pytest.raises(ValueError, match="must not be a Rosenbrock scheme"):
        nets.parabolic(2, 2, 4, 3, scheme="rodas4")


def test_a_classifier_with_implicit_layers_learns():
    from stepnet import training
    from stepnet.estimators import NetClassifier

    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 120)
    radius = 1.0 + labels + 0.1 * random.normal(size=120)
    angle = random.uniform(0, 2 * np.pi, 120)
    points = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
    how = {"scheme": "implicit_euler", "steps": 2, "length": 10.0, "width": 8, "random_state": 0}
    model = NetClassifier("parabolic", optimiser=training.GaussNewton(15, cg_iterations=10), **how)
    assert model.fit(points, labels).score(points, labels) > 0.95
