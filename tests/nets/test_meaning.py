"""What a net computes: the same as the equivalent problem, in any batch; equivariant where stated."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fields.zoo import RING
from nets.cases import SPLINES, field_of, net_of, pairwise, product_of_all

import stepnet as sn
from stepnet import fields, nets
from stepnet.engines.numba_engine.layers.matrix_products import SMALL, WIDE
from stepnet.fields import reference
from stepnet.fields.activations import SELU_ALPHA, SELU_SCALE
from stepnet.nets import Block, Design, Net

ROUNDING = 1e-12
BATCH = 4
COMPANY = 75  # samples: several tiles, and one that is not full


TRIPLES = [case[:3] for case in product_of_all() if case[3] == "all"]
FEW = pairwise(TRIPLES)
REST = [case for case in TRIPLES if case not in set(FEW)]
IN_COMPANY = [(*case, dtype) for case in TRIPLES for dtype in ("float64", "float32")]
FEW_IN_COMPANY = pairwise(IN_COMPANY)
REST_IN_COMPANY = [case for case in IN_COMPANY if case not in set(FEW_IN_COMPANY)]


def check_plain(case, counted, within):
    """States at all depths are those that the solver of plain problems finds with the same scheme.

    Weights are functions of time there: those that are held over steps are not.
    """
    number = TRIPLES.index(case)
    net = net_of(*case, number, degrees=SPLINES)
    x = np.random.default_rng(number).normal(size=(BATCH, net.design.n_in))
    solution = sn.solve(net.problem(x), case[2], steps=net.design.blocks[0].steps)
    found = net.features(x)
    wanted = solution.y.reshape(len(solution.t), net.design.n_in, BATCH).swapaxes(1, 2)
    within("fused layers, against the plain problem", np.abs(found - wanted).max() / np.abs(wanted).max(), ROUNDING)
    np.testing.assert_array_equal(found[-1], net(x))
    counted("combinations of connectivity x dynamics x scheme: the plain problem", " ".join(case), len(TRIPLES))


@pytest.mark.parametrize("case", FEW, ids=" ".join)
def test_fused_layers_solve_the_plain_problem_for_every_pair_of_factors(case, counted, within):
    check_plain(case, counted, within)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST, ids=" ".join)
def test_fused_layers_solve_the_plain_problem(case, counted, within):
    check_plain(case, counted, within)


def test_plain_problem_of_an_adaptive_scheme_converges_to_the_net():
    net = net_of("dense", "antisymmetric", "rk4", number=2, steps=400)
    x = np.random.default_rng(0).normal(size=(BATCH, 5))
    solution = sn.solve(net.problem(x), "dopri5", rtol=1e-10, atol=1e-12, save_every=0)
    np.testing.assert_allclose(solution.y[-1].T, net(x), atol=1e-8)  # fourth order in h = 0.002


def derived(net, x, x_dot, y_bar):
    """Outputs, tangents by inputs and by parameters, and gradients by inputs, a row for every sample."""
    theta_dot = np.random.default_rng(0).normal(size=net.theta.size)
    outputs, push = net.tangent(x, theta_dot, x_dot)
    np.testing.assert_array_equal(outputs, net(x))
    return np.concatenate((outputs, push, net.gradient(x, end_gradient=y_bar).x), axis=1)


def check_company(case, counted):
    """Other orders, alone, and among three times as many."""
    *names, dtype = case
    number = IN_COMPANY.index(case)
    net, random = net_of(*names, number, dtype=dtype), np.random.default_rng(number)
    given = random.normal(size=(3, COMPANY, net.design.n_in)).astype(dtype)
    rows, order = derived(net, *given), random.permutation(COMPANY)
    assert np.isfinite(rows).all()
    np.testing.assert_array_equal(derived(net, *given[:, order]), rows[order])
    np.testing.assert_array_equal(derived(net, *given[:, 7:8]), rows[7:8])
    np.testing.assert_array_equal(derived(net, *np.tile(given, (1, 3, 1)))[2 * COMPANY :], rows)
    what = "combinations of connectivity x dynamics x scheme x precision: bits in company"
    counted(what, " ".join(case), len(IN_COMPANY))


@pytest.mark.parametrize("case", FEW_IN_COMPANY, ids=" ".join)
def test_bits_of_a_sample_do_not_depend_on_its_company_for_every_pair_of_factors(case, counted):
    check_company(case, counted)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST_IN_COMPANY, ids=" ".join)
def test_bits_of_a_sample_do_not_depend_on_its_company(case, counted):
    check_company(case, counted)


def test_bits_do_not_depend_on_threads_or_on_wide_matrices():
    random = np.random.default_rng(2)
    for width in (8, 24, 40, 130, 520):  # in registers on groups of tiles and on tiles, BLAS on groups of tiles
        design = nets.resnet(3, 2, width, 6).design
        x = random.normal(size=(700, 3))
        one, many = (Net(design, seed=1, workers=n) for n in (1, 3))
        np.testing.assert_array_equal(one(x), many(x))
        np.testing.assert_array_equal(one(x[500:600]), many(x)[500:600])
        grads = [net.gradient(x, lambda y: (0.0, y)) for net in (one, many)]
        np.testing.assert_array_equal(grads[0].theta, grads[1].theta)


@pytest.mark.parametrize("nodes", [1, 20])
@pytest.mark.parametrize("width", [64, 66, 131, 520])
def test_wide_layers_are_what_numpy_finds(width, nodes):
    """In registers up to some width, which depends on the processor; by BLAS beyond it, or if rows are long."""
    net = Net(Design((Block(fields.residual(fields.nodewise(nodes, width)), "euler", 1, 0.5),)), seed=4)
    K, b = net.weights["blocks.0.K"].reshape(width, width), net.weights["blocks.0.b"].reshape(width, 1)
    x, x_dot = np.random.default_rng(width).normal(size=(2, 70, width, nodes))
    z = np.tanh(K @ x + b)
    y = x + 0.5 * z
    g = 0.5 * y * (1 - z * z)
    found = net.gradient(x.reshape(70, -1), lambda y: (0.0, y))
    _, y_dot = net.tangent(x.reshape(70, -1), np.zeros_like(net.theta), x_dot.reshape(70, -1))
    (stage,) = net._execution.stages
    assert stage.calls_blas == (width > WIDE or (width > SMALL and nodes > 1))
    for found_here, wanted in (
        (found.outputs, y), (y_dot, x_dot + 0.5 * (1 - z * z) * (K @ x_dot)), (found.x, y + K.T @ g),
        (found.weights["blocks.0.K"], np.einsum("son,sin->oi", g, x)), (found.weights["blocks.0.b"], g.sum((0, 2))),
    ):  # fmt: skip
        np.testing.assert_allclose(found_here.ravel(), wanted.ravel(), rtol=1e-11, atol=1e-12 * np.abs(wanted).max())


def block_net(K, dynamics="parabolic", scheme="rk4"):
    net = Net(Design((Block(fields.DYNAMICS[dynamics](K), scheme, 5, 1.0),)))
    net.put(np.random.default_rng(3).normal(size=net.theta.size) * 0.4)
    return net


def check_equivariance(K, permute, dynamics="parabolic", scheme="rk4"):
    """net(permute(x)) = permute(net(x)), where nodes are permuted in every channel."""
    net = block_net(K, dynamics, scheme)
    nodes = K.tokens if isinstance(K, fields.Attention) else K.nodes_in
    x = np.random.default_rng(4).normal(size=(3, net.design.n_in))

    def moved(y):
        return y.reshape(3, -1, nodes)[..., permute].reshape(3, -1)

    np.testing.assert_allclose(net(moved(x)), moved(net(x)), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("dynamics", ["residual", "parabolic", "antisymmetric"])
def test_sets_are_equivariant_under_permutations(dynamics):
    check_equivariance(fields.equivariant(6, 3), np.random.default_rng(5).permutation(6), dynamics)


def test_attention_is_equivariant_under_permutations_unless_it_is_causal():
    order = np.random.default_rng(6).permutation(5)
    check_equivariance(fields.Attention(5, 4, heads=2), order, "parabolic")
    with pytest.raises(AssertionError):
        check_equivariance(fields.Attention(5, 4, heads=2, is_causal=True), order, "parabolic")


@pytest.mark.parametrize("filter", ["adjacency", "laplacian", "chebyshev"])
def test_graphs_are_equivariant_under_their_symmetries(filter):
    check_equivariance(fields.graph(RING, 2, filter=filter), np.roll(np.arange(5), 2), "hamiltonian", "verlet")


def test_periodic_convolutions_are_equivariant_under_translations_and_zero_padding_is_not():
    check_equivariance(fields.conv1d(7, 2, padding="periodic"), np.roll(np.arange(7), 3))
    shifted = np.roll(np.arange(20).reshape(4, 5), (1, 2), axis=(0, 1)).ravel()
    check_equivariance(fields.conv2d((4, 5), 2, padding="periodic"), shifted)
    with pytest.raises(AssertionError):
        check_equivariance(fields.conv2d((4, 5), 2), shifted)


def test_images_turn_with_stencils_that_turn():
    net = block_net(fields.conv2d((4, 4), 2, padding="zero"))
    turned = np.rot90(np.arange(9).reshape(3, 3)).ravel()
    other = block_net(fields.conv2d((4, 4), 2, padding="zero"))
    other.weights["blocks.0.K"][...] = net.weights["blocks.0.K"][:, turned]
    x = np.random.default_rng(7).normal(size=(3, 2, 4, 4))
    found = other(np.rot90(x, axes=(2, 3))).reshape(x.shape)
    np.testing.assert_allclose(found, np.rot90(net(x).reshape(x.shape), axes=(2, 3)), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", fields.ACTIVATIONS)
def test_activations_of_kernels_are_within_few_units_in_the_last_place(name, dtype):
    import mpmath

    scale, alpha = mpmath.mpf(SELU_SCALE), mpmath.mpf(SELU_ALPHA)
    exact = {
        "tanh": mpmath.tanh, "relu": lambda u: max(u, 0), "leaky_relu": lambda u: u if u > 0 else u * mpmath.mpf(0.01),
        "softplus": lambda u: mpmath.log1p(mpmath.exp(u)), "gelu": lambda u: u * mpmath.ncdf(u),
        "silu": lambda u: u / (1 + mpmath.exp(-u)), "elu": lambda u: u if u > 0 else mpmath.expm1(u),
        "selu": lambda u: scale * (u if u > 0 else alpha * mpmath.expm1(u)),
        "sigmoid": lambda u: 1 / (1 + mpmath.exp(-u)), "identity": lambda u: u,
    }[name]  # fmt: skip
    random = np.random.default_rng(8)
    small = 10.0 ** random.uniform(-12, 1.2, 100)
    u = np.concatenate((random.normal(size=300) * 3, small, -small)).astype(dtype)
    chain = fields.Chain((fields.Layer(fields.resized(1, 1), None, None, name),))
    net = Net(Design((Block(fields.chained(chain), None, 1),)), dtype=dtype)
    with mpmath.workdps(40):
        wanted = [exact(mpmath.mpf(float(v))) for v in u]
        found = [mpmath.mpf(float(v)) for v in net(u[:, None]).ravel()]
        units = [np.spacing(dtype(max(abs(float(w)), np.finfo(dtype).tiny))) for w in wanted]
        ulps = [abs(f - w) / float(unit) for f, w, unit in zip(found, wanted, units, strict=True)]
    # A quotient of two sums for tanh, products of two such numbers for the last three.
    assert max(ulps) <= {"tanh": 2.75, "silu": 2.5, "selu": 2.5, "gelu": 4.0}.get(name, 2.0)


FAR = {  # values and slopes of large negative and positive arguments, None for the argument itself
    "tanh": (-1, 0, 1, 0), "relu": (0, 0, None, 1), "softplus": (0, 0, None, 1), "gelu": (0, 0, None, 1),
    "silu": (0, 0, None, 1), "elu": (-1, 0, None, 1), "sigmoid": (0, 0, 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FAR)
def test_activations_of_kernels_have_the_right_limits(name, dtype):
    chain = fields.Chain((fields.Layer(fields.resized(1, 1), None, None, name),))
    net = Net(Design((Block(fields.chained(chain), None, 1),)), dtype=dtype)
    sizes = np.array([1e3, 1e10, 1e30, np.finfo(dtype).max / 4], dtype)
    for sign, value, slope in ((-1, *FAR[name][:2]), (1, *FAR[name][2:])):
        u = sign * sizes
        found = net.gradient(u[:, None], end_gradient=np.ones((len(u), 1)))
        wanted = u if value is None else np.full_like(u, value)
        np.testing.assert_allclose(found.outputs.ravel(), wanted, rtol=0, atol=1e-35)
        np.testing.assert_allclose(found.x.ravel(), slope, rtol=0, atol=1e-35)


def test_time_is_an_input():
    net = nets.neural_ode(2, None, (6,), 8, has_time=True)
    random = np.random.default_rng(9)
    net.put(random.normal(size=net.theta.size))
    x = random.normal(size=(4, 2))
    solution = sn.solve(net.problem(x), "rk4", steps=8, save_every=0)
    np.testing.assert_allclose(solution.y[-1].T, net(x), atol=ROUNDING)
    assert np.abs(net.gradient(x, end_gradient=net(x)).weights["blocks.0.c1"]).min() > 0


def test_mlp_has_no_skip():
    net = nets.mlp(3, 2, 4, 5)
    x, w = np.random.default_rng(10).normal(size=(6, 3)), net.weights
    y = np.tanh(x @ w["opening.K"].T + w["opening.b"])
    for K, b in zip(w["blocks.0.K"], w["blocks.0.b"], strict=True):
        y = np.tanh(y @ K.T + b)
    np.testing.assert_allclose(net(x), y @ w["readout.W"].T + w["readout.b"], atol=ROUNDING)


def test_blocks_are_joined_by_pooling_and_a_change_of_channels():
    net = nets.parabolic_cnn((8, 8), (4, 6), 3, inputs=2, outputs=3, dynamics="hamiltonian")
    random = np.random.default_rng(11)
    net.put(0.3 * random.normal(size=net.theta.size))
    x, v, e = random.normal(size=(5, 2, 8, 8)), random.normal(size=net.theta.size), 1e-6
    found, outputs = net.gradient(x, lambda y: (0.5 * np.sum(y * y), y)), net(x)
    assert outputs.shape == (5, 3)
    assert found.x.shape == x.shape
    values = [0.5 * np.sum(Net(net.design, net.theta + s * v)(x) ** 2) for s in (e, -e)]
    assert abs((values[0] - values[1]) / (2 * e) - found.theta @ v) < 1e-6 * abs(found.theta @ v)
    assert net.features(x, 1).shape == (4, 5, 6 * 4 * 4)


def test_refined_net_is_the_same_function_of_depth():
    net = nets.hamiltonian(3, 2, 8, 20, scheme="verlet", degree=1)
    x, ends = np.random.default_rng(12).normal(size=(6, 3)), []
    for _ in range(4):
        ends.append(net(x))
        net = net.refine()
    first, second, third = (np.linalg.norm(b - a) for a, b in itertools.pairwise(ends))
    assert 3.5 < first / second < 4.5  # Verlet is of second order
    assert 3.5 < second / third < 4.5


def test_reference_of_the_field_is_what_an_euler_step_adds():
    net = net_of("chebyshev", "antisymmetric", "euler", steps=1)
    x, block = np.random.default_rng(13).normal(size=(3, 10)), net.design.blocks[0]
    weights = {name: net.weights[f"blocks.0.{name}"][0] for name in block.parameters}
    slope = reference.evaluate(field_of("chebyshev", "antisymmetric").parts[0], weights, 0.0, x.T)
    np.testing.assert_allclose(net(x), x + 0.8 * slope.T, atol=ROUNDING)
