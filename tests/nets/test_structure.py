"""Properties of the dynamics: growth, invariants, symplecticity, Jacobians of deep nets, stability limits.

The dynamics are those of Haber & Ruthotto (2017), Chang et al. (2018) and Ruthotto & Haber (2020), whose statements are
quoted in `docs/claims.md`.  All numbers are ours; in brackets those that earlier scripts of ours found.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from stepnet import fields, nets
from stepnet.nets import Block, Design, Net

UNSTABLE, STABLE, TURNING = [[2.0, -2.0], [0.0, 2.0]], [[-2.0, 0.0], [2.0, -2.0]], [[0.0, -1.0], [1.0, 0.0]]
THREE = np.array([[0.1, 0.1], [-0.1, -0.1], [0.0, 0.5]])
MATRICES = {"+": UNSTABLE, "-": STABLE, "0": TURNING}
PRINTED = 0.02  # relative: earlier numbers have two digits or more
NOTHING = 1e-11  # the least singular value is below that
ROWS = {  # h, layers, matrix: |y1|, |y3|, separation, singular values, determinant, as found by an earlier script
    (0.1, 10, "+"): (0.604, 1.704, 4.27, 7.64, 2.31, 17.6),
    (0.1, 10, "-"): (0.0393, 0.0663, 0.278, 0.313, 0.038, 0.012),
    (0.1, 10, "0"): (0.1487, 0.5175, 1.051, 1.057, 1.043, 1.10),
    (0.1, 20, "+"): (1.932, 3.10, 13.7, 8.79, 2.77, 24.3),
    (0.1, 20, "-"): (0.0071, 0.0072, 0.050, 0.061, 0.0023, 1.4e-4),
    (0.1, 20, "0"): (0.1561, 0.5444, 1.104, 1.112, 1.092, 1.21),
    (1.0, 20, "+"): (26.2, 28.3, 185, None, None, None),
    (1.0, 20, "-"): (0.342, 0.091, 2.42, 0.53, 1e-11, 9e-12),
    (1.0, 20, "0"): (4.10, 4.30, 29, 58.8, 1.57, 92),
}
SEEDS = range(5)


def shown(numbers) -> str:
    return " ".join(f"{each:.4g}" for each in numbers)


def planar(K, h, steps, scheme="euler", shift=0.0):
    chain = fields.affine(fields.dense(2), "tanh", shift=shift)
    net = Net(Design((Block(fields.chained(chain), scheme, steps, h * steps, fields.Depth(1)),)))
    net.weights["blocks.0.K"][...] = K
    return net


def jacobian(net, x):
    """dy/dx at one sample."""
    n = net.design.n_in
    return net.tangent(np.tile(x, (n, 1)), x_dot=np.eye(n))[1].T


def measures(h, steps, name):
    """Norms of y1 and y3, growth of the distance of y1 and y2; singular values and determinant of dy/dx at y1."""
    net = planar(MATRICES[name], h, steps)
    y, J = net(THREE), jacobian(net, THREE[0])
    separation = np.linalg.norm(y[0] - y[1]) / np.linalg.norm(THREE[0] - THREE[1])
    return (*np.linalg.norm(y[[0, 2]], axis=1), separation, *np.linalg.svd(J, compute_uv=False), np.linalg.det(J))


def test_layers_of_three_matrices():
    """To the digits of the table, but for what has vanished: h = 1, K-, where those of the script were round-off."""
    print("\nthree matrices: |y1|, |y3|, separation, singular values, determinant; measured (by an earlier script)")
    for row, earlier in ROWS.items():
        found = measures(*row)
        text = ", ".join(f"{a:.4g} ({'-' if b is None else f'{b:.4g}'})" for a, b in zip(found, earlier, strict=True))
        print(f"  h = {row[0]}, {row[1]} layers, K{row[2]}: {text}")
        for value, before in zip(found, earlier, strict=True):
            if before is None:
                continue
            if before > NOTHING:
                assert value == pytest.approx(before, rel=PRINTED)
            else:
                assert abs(value) < NOTHING


def test_twenty_layers_explode_forget_or_turn():
    grown = {name: measures(0.1, 20, name) for name in MATRICES}
    start = np.linalg.norm(THREE[0])
    assert grown["+"][0] / start > 10
    assert grown["-"][0] / start < 0.06
    gap = abs(grown["-"][0] - grown["-"][1])
    print(f"K-: norms of y1 and y3, 3.5 times apart before, end within {gap:.1e} (1e-04)")
    assert gap < 1e-4
    assert abs(grown["0"][0] / start - 1.10) < 0.01  # linear theory: (1 + h^2)^(L/2) = 1.105


def test_euler_is_not_made_stable_by_antisymmetry_but_by_a_shift():
    table = {"euler": (29, 18.4, 8.3, 3.3, 1.85), "rk4": (0.889, 0.997, 1.0005, 1.0006, 1.0006)}
    start = np.linalg.norm(THREE[0])
    for scheme, earlier in table.items():
        found = [np.linalg.norm(planar(TURNING, 20 / n, n, scheme)(THREE)[0]) / start for n in (20, 40, 80, 160, 320)]
        print(f"K0, T = 20, 20 to 320 layers, {scheme}: {shown(found)} {earlier}")
        np.testing.assert_allclose(found, earlier, rtol=PRINTED if scheme == "euler" else 1e-3)
    kept = np.linalg.norm(planar(TURNING, 0.1, 20, shift=-0.05)(THREE)[0])
    print(f"K0 with a shift of h / 2, 20 layers: {kept:.4f} (0.1415) from {start:.4f}")
    assert abs(kept / start - 1) < 1e-3
    assert kept == pytest.approx(0.1415, rel=1e-3)


def drifts(scheme, seed):
    """Of H = sum log cosh(K y + b) over T = 20 with h = 0.1, 0.05, 0.025; entries of K have unit variance."""
    random, found = np.random.default_rng(seed), []
    A, b, y0 = random.normal(size=(6, 6)) / np.sqrt(2), random.normal(size=6), random.normal(size=(3, 6))

    def energy(y):
        return np.log(np.cosh(y @ (A - A.T).T + b)).sum(axis=1)

    for steps in (200, 400, 800):
        block = Block(fields.antisymmetric(fields.dense(6)), scheme, steps, 20.0, fields.Depth(1))
        net = Net(Design((block,)))
        net.weights["blocks.0.K"][...], net.weights["blocks.0.b"][...] = A, b
        found.append(np.abs(energy(net(y0)) - energy(y0)).max())
    return found


@pytest.mark.parametrize(
    ("scheme", "earlier", "orders"),
    [("rk4", (1.8e-4, 6.9e-6, 2.9e-7), (3.9, 5.3)), ("euler", (6.6, 3.4, 1.6), (0.7, 1.2))],
)
def test_sum_of_log_cosh_is_an_invariant_of_antisymmetric_nets(scheme, earlier, orders):
    """H has the derivative tanh' K tanh = 0.  RK4 is of order 4 at least; earlier drifts are those of other weights."""
    found = np.array([drifts(scheme, seed) for seed in SEEDS])
    medians, order = np.median(found, axis=0), np.log2(found[:, 0] / found[:, 2]) / 2
    print(f"sum log cosh, T = 20, h = 0.1, 0.05, 0.025, {scheme}: {shown(medians)} {earlier}, "
          f"orders {shown(order)}")  # fmt: skip
    assert orders[0] < order.min() <= order.max() < orders[1]
    assert (np.abs(np.log10(medians / earlier)) < 1).all()


def test_hamiltonian_nets_are_symplectic_and_the_older_verlet_nets_keep_volume_only():
    random, m = np.random.default_rng(1), 3
    Omega = np.block([[np.zeros((m, m)), np.eye(m)], [-np.eye(m), np.zeros((m, m))]])
    defects, volumes = {}, {}
    for dynamics in ("hamiltonian", "staggered"):
        block = Block(fields.DYNAMICS[dynamics](fields.dense(m)), "verlet", 20, 2.0)
        net = Net(Design((block,)))
        net.put(random.normal(size=net.theta.size))
        J = jacobian(net, random.normal(size=2 * m))
        defects[dynamics] = np.abs(J.T @ Omega @ J - Omega).max() / np.abs(J).max() ** 2
        volumes[dynamics] = abs(np.linalg.det(J) - 1)
    for name, earlier in (("hamiltonian", "1e-15"), ("staggered", "1.07")):
        print(f"{name}: symplectic defect {defects[name]:.1e} ({earlier}), det - 1: {volumes[name]:.0e} (3e-16)")
    assert max(volumes.values()) < 1e-12
    assert defects["hamiltonian"] < 1e-14
    assert defects["staggered"] > 1e-3


# ---- Jacobians of 1202 layers: h = 0.1, 16 features or two times 16, K of unit scale anew in every layer, no bias ----


def singular_values(preset, width, seed, steps=1202, **options):
    net, random = preset(None, None, width, steps, length=0.1 * steps, **options), np.random.default_rng(seed)
    net.weights["blocks.0.K"][...] = random.normal(size=net.weights["blocks.0.K"].shape) / 4
    return np.linalg.svd(jacobian(net, random.normal(size=width)), compute_uv=False)


NORMS = {  # largest and least singular value of an earlier script, and bounds of the largest for every seed
    "plain tanh": (nets.mlp, 16, (2e-18, None), (0, 1e-12)),
    "ResNet": (nets.resnet, 16, (18, None), (3, 100)),
    "antisymmetric": (nets.antisymmetric, 16, (17, 0.52), (3, 200)),
    "Hamiltonian": (partial(nets.hamiltonian, scheme="verlet", degree=0), 32, (351, 0.0028), (30, 4000)),
}


@pytest.mark.parametrize("name", NORMS)
def test_jacobians_of_1202_layers_vanish_without_a_skip_only(name):
    preset, width, earlier, (least, most) = NORMS[name]
    found = np.array([singular_values(preset, width, seed) for seed in SEEDS])
    top, low = np.median(found[:, 0]), np.median(found[:, -1])
    print(f"singular values over 1202 layers, {name}: {top:.2g} to {low:.2g} {earlier}; all {shown(found[:, 0])}")
    assert least <= found[:, 0].min()
    assert found[:, 0].max() <= most
    assert abs(np.log10(top / earlier[0])) < (3 if name == "plain tanh" else 1)
    if earlier[1] is not None:
        assert abs(np.log10(low / earlier[1])) < 1


def test_singular_values_of_hamiltonian_nets_come_in_pairs():
    """s and 1 / s, to the digits that 1202 layers leave: the largest is 1 at least, gradients never vanish."""
    for seed in SEEDS:
        values = singular_values(nets.hamiltonian, 32, seed)
        np.testing.assert_allclose(values * values[::-1], 1.0, rtol=0, atol=1e-10)


def test_the_same_weights_in_every_layer_do_not_bound_the_jacobian():
    """Trajectories of an autonomous Hamiltonian part at least linearly in time; some do exponentially."""
    depths = (150, 300, 601, 1202)
    for width in (16, 32):
        found = np.array(
            [
                [singular_values(nets.hamiltonian, width, seed, n, controls=1, scheme="verlet")[0] for n in depths]
                for seed in SEEDS
            ]
        )
        print(f"constant K, {width} features, {depths} layers: {shown(np.median(found, axis=0))} (30 at 1202); "
              f"all at 1202: {shown(found[:, -1])}")  # fmt: skip
        assert (found[:, 1:] > 1.2 * found[:, :-1]).all()


def test_diffusion_forgets_over_1202_layers():
    net = nets.parabolic(None, None, 8, 1202, length=1202 * 0.02)
    net.put(np.random.default_rng(2).normal(size=net.theta.size) / 2)
    assert np.linalg.norm(jacobian(net, np.ones(8)), 2) < 1e-3


# ---- stability limits -----------------------------------------------------------------------------------------------


def grown(field, scheme, h, K, x, steps=400):
    net = Net(Design((Block(field, scheme, steps, h * steps, fields.Depth(1)),)))
    net.weights["blocks.0.K"][...] = K
    return np.abs(net.features(x)).max(axis=(1, 2))


def test_parabolic_euler_is_bounded_up_to_two_and_leapfrog_up_to_four():
    random, x = np.random.default_rng(6), 1e-8 * np.random.default_rng(7).normal(size=(2, 5))
    K = random.normal(size=(5, 5))
    norm = np.linalg.norm(K, 2)
    for limit, is_bounded in ((1.9, True), (2.0, True), (2.05, False), (2.2, False)):
        size = grown(fields.parabolic(fields.dense(5)), "euler", limit / norm**2, K, x)
        assert (size[-1] <= size[0] * 1.01) == is_bounded
    start = np.concatenate((x, x), axis=1)
    for limit, least, most in ((3.9, 0, 100), (4.0, 10, 2000), (4.1, 1e4, np.inf)):  # linear at the limit: 400 steps
        for scheme in ("verlet", "leapfrog_two_step"):
            size = grown(fields.hyperbolic(fields.dense(5)), scheme, np.sqrt(limit) / norm, K, start)[:, ...]
            assert least <= size.max() / size[0] < most


@pytest.mark.parametrize(
    ("dynamics", "scheme"),
    [
        ("parabolic", "euler"),
        ("parabolic", "rkc2"),
        ("hyperbolic", "verlet"),
        ("hamiltonian", "verlet"),
        ("antisymmetric", "rk4"),
    ],
)
@pytest.mark.parametrize("norm", [None, "rms"])
def test_stable_initialisation_lies_inside_the_stability_region(dynamics, scheme, norm):
    """Weights ten times too large are scaled down so that small states stay small over many steps."""
    field = fields.DYNAMICS[dynamics](fields.dense(6), norm=norm)
    from stepnet.nets.initialisation import find_largest_norm, find_norm

    block = Block(field, scheme, 300, 300.0)
    net = Net(Design((block,)), initialisation="stable")
    layer, bound = field.parts[0].layers[0], find_largest_norm(block)
    assert max(find_norm(layer, W) for W in net.weights["blocks.0.K"]) <= bound * 1.01
    steady = Net(Design((Block(field, scheme, 300, 300.0, fields.Depth(1)),)))
    K = np.random.default_rng(8).normal(size=(6, 6))
    x = 1e-8 * np.random.default_rng(9).normal(size=(2, steady.design.n_in))
    sizes = []
    for factor in (1.0, 1.5):
        steady.weights["blocks.0.K"][...] = K * factor * bound / find_norm(layer, K)
        sizes.append(np.abs(steady(x)).max() / np.abs(x).max())
    assert sizes[0] < 500  # hyperbolic states grow linearly at most
    assert sizes[1] > 1e3


def test_stable_initialisation_says_where_there_is_no_stable_layer():
    with pytest.raises(ValueError, match="positive damping"):
        nets.antisymmetric(2, 2, 4, 5, scheme="euler", initialisation="stable")
    assert nets.antisymmetric(2, 2, 4, 5, scheme="euler", damping=0.5, initialisation="stable").theta.size


@pytest.mark.parametrize("name", ["lecun", "glorot", "he", "orthogonal"])
def test_initialisations_have_their_variance(name):
    net = nets.resnet(None, None, 200, 4, initialisation=name)
    K = net.weights["blocks.0.K"]
    variance = {"lecun": 1 / 200, "glorot": 1 / 200, "he": 2 / 200, "orthogonal": 1 / 200}[name]
    assert abs(K.var() / variance - 1) < 0.02
    assert not net.weights["blocks.0.b"].any()
    if name == "orthogonal":
        np.testing.assert_allclose(K[0] @ K[0].T, np.eye(200), atol=1e-12)
