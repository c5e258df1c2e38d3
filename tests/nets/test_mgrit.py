"""Parallel in depth: the results of serial runs, rates of convergence, and independence of the distribution of work."""

from __future__ import annotations

import numpy as np
import pytest
from fields.zoo import RING

import stepnet as sn
from stepnet import nets
from stepnet.nets import MGRIT, mgrit_forward, mgrit_gradient

ROUNDING = 1e-12  # of a few dozen steps and their adjoints
SINGLE = 1e-4  # the same in float32

NETS = {
    "euler": lambda **options: nets.resnet(3, 2, 8, 16, length=4.0, **options),
    "rk4, splines": lambda **options: nets.resnet(3, 2, 8, 16, length=4.0, scheme="rk4", degree=3, **options),
    "wide": lambda **options: nets.antisymmetric(3, 2, 40, 16, length=4.0, scheme="heun2", **options),
    "hamiltonian": lambda **options: nets.hamiltonian(3, 2, 8, 16, length=4.0, **options),
    "verlet": lambda **options: nets.hamiltonian(3, 2, 8, 16, length=4.0, scheme="verlet", degree=0, **options),
    "verlet, held": lambda **options: nets.hamiltonian(3, 2, 8, 16, length=4.0, scheme="verlet", **options),
    "yoshida": lambda **options: nets.hamiltonian(3, 2, 8, 16, length=4.0, scheme="yoshida4", degree=1, **options),
    "verlet_position": lambda **options: nets.hyperbolic(3, 2, 8, 16, scheme="verlet_position", **options),
    "no skip": lambda **options: nets.mlp(3, 2, 8, 16, **options),
    "constant": lambda **options: nets.neural_ode(3, 2, (8,), 16, has_time=True, length=4.0, **options),
    "graph": lambda **options: nets.graph_ode(RING, 2, 16, **options),
    "attention": lambda **options: nets.attention_net(3, 4, 16, heads=2, **options),
    "two-step midpoint": lambda **options: nets.midpoint_net(3, 2, 8, 16, length=4.0, **options),
    "two-step leapfrog": lambda **options: nets.leapfrog_net(3, 2, 8, 16, length=4.0, degree=1, **options),
    "leapfrog from rest": lambda **options: nets.leapfrog_net(3, 2, 8, 16, length=4.0, start="equal", **options),
    "three-step Adams": lambda **options: nets.resnet(3, 2, 8, 16, length=4.0, scheme="ab3", **options),
    "two blocks": lambda **options: nets.parabolic_cnn((4, 4), (2, 4), 16, outputs=2, activation="tanh", **options),
}


def half_square(y):
    return 0.5 * float(np.sum(y * y)), y


def inputs_of(net, batch=21):
    return np.random.default_rng(7).normal(size=(batch, net.design.n_in))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    ("mgrit", "is_early"),
    [(MGRIT(4, iterations=2, tolerance=0.0), False), (MGRIT(4, relaxation="F", iterations=3, tolerance=0.0), False),
     (MGRIT(2, levels=3, iterations=8, tolerance=0.0), False), (MGRIT(4, iterations=1, tolerance=0.0), True)],
    ids=["two levels", "F", "three levels", "one iteration less"],
)  # fmt: skip
def test_exact_after_as_many_iterations_as_intervals_need(name, mgrit, is_early):
    """FCF makes two more intervals exact in an iteration, F one, and the last propagation one."""
    net = NETS[name](seed=2)
    x = inputs_of(net)
    forward = mgrit_forward(net, x, mgrit, is_compared=True)
    found = mgrit_gradient(net, x, half_square, mgrit, is_compared=True)
    serial = net.gradient(x, half_square)
    if is_early:
        assert forward.error > ROUNDING
        assert found.error > ROUNDING
        return
    assert forward.error < ROUNDING
    assert found.error < ROUNDING
    np.testing.assert_allclose(found.gradient.theta, serial.theta, rtol=0, atol=ROUNDING * np.abs(serial.theta).max())
    np.testing.assert_allclose(found.gradient.x, serial.x, rtol=0, atol=ROUNDING * np.abs(serial.x).max())
    assert found.gradient.value == pytest.approx(serial.value, rel=ROUNDING)
    for number, states in enumerate(forward.states):
        features = net.features(x, number)[:: mgrit.coarsening]
        np.testing.assert_allclose(states, features, rtol=0, atol=ROUNDING * np.abs(features).max())


@pytest.mark.parametrize("name", ["wide", "two blocks", "verlet", "two-step midpoint"])
def test_who_computes_does_not_matter(name):
    """Threads, and shares that are gathered as processes would do, give the same bits."""

    def in_two_shares(function, *lists):
        entries = list(zip(*lists, strict=True))
        later = [function(*entry) for entry in entries[1::2]]
        found = [None] * len(entries)
        found[::2], found[1::2] = [function(*entry) for entry in entries[::2]], later
        return found

    def numbers(workers=None, carrier=None):
        net = NETS[name](seed=1, workers=workers)
        found = mgrit_gradient(net, inputs_of(net, 300), half_square, MGRIT(2, 3, iterations=3), carrier=carrier)
        return found.gradient.theta, found.gradient.x, found.gradient.outputs, found.forward, found.adjoint

    one = numbers(workers=1)
    for other in (numbers(workers=3), numbers(carrier=in_two_shares)):
        for a, b in zip(one[:3], other[:3], strict=True):
            np.testing.assert_array_equal(a, b)
        assert one[3:] == other[3:]


def test_samples_behind_the_batch_do_not_count():
    net = NETS["euler"]()
    x = inputs_of(net, 5)
    one, twice = (mgrit_forward(net, each).convergence[0].residuals for each in (x, np.concatenate((x, x))))
    np.testing.assert_allclose(one[:3], twice[:3], rtol=1e-6)


def test_single_precision():
    net = NETS["verlet"](dtype=np.float32)
    found = mgrit_gradient(net, inputs_of(net), half_square, MGRIT(4, iterations=2), is_compared=True)
    assert found.gradient.theta.dtype == np.float32
    assert found.error < SINGLE


# ---- how fast: eight channels, Euler, weights that are smooth in depth or not ---------------------------------------


def along_depth(length, steps, is_smooth=True, seed=0, **options):
    net, rng = nets.resnet(None, None, 8, steps, length=length, **options), np.random.default_rng(seed)
    angle = 2 * np.pi * (np.arange(steps) + 0.5) / steps
    for weights in net.weights.values():
        if is_smooth:
            shapes = (np.ones(steps), np.sin(angle), np.cos(angle))
            weights[...] = sum(np.multiply.outer(s, rng.normal(size=weights.shape[1:])) for s in shapes)
        else:
            weights[...] = rng.normal(size=weights.shape)
        weights /= np.sqrt(8)
    return net


def factors(net, **options):
    """Of the states, of the adjoint; and the errors of outputs and gradient."""
    x = np.random.default_rng(1).normal(size=(20, net.design.n_in))
    mgrit = MGRIT(4, iterations=5, tolerance=0.0, **options)
    found = mgrit_gradient(net, x, half_square, mgrit, is_compared=True)
    return found.forward[0].factor, found.adjoint[0].factor, found.error


SPEEDS = {  # T, N, coarsening, weights: errors of the first iterations and mean factor of an earlier script of ours
    (1.0, 1024, 4, "smooth"): ((2e-6, 2e-9, 2e-12, 4e-15), 0.001),
    (5.0, 256, 4, "smooth"): ((6e-4, 2e-5, 4e-7, 7e-9, 1e-10), 0.021),
    (20.0, 1024, 16, "smooth"): ((2e-2, 2e-3, 1e-4, 5e-6, 3e-7), 0.057),
    (20.0, 64, 4, "smooth"): ((1e-1, 6e-2, 1e-2, 3e-3, 6e-4), 0.25),
    (20.0, 256, 4, "smooth"): ((), 0.06),
    (20.0, 1024, 4, "smooth"): ((), 0.014),
    (5.0, 256, 4, "random"): ((8e-2, 1e-2, 2e-3, 2e-4, 4e-5), 0.15),
}
LIKE = 2.0  # factors of other weights are the same up to so much
FLOOR = 1e-14  # errors below are rounding


def errors_of(length, steps, coarsening, kind, seed):
    """Of the outputs after one, two, ... five iterations, relative."""
    net, x = along_depth(length, steps, kind == "smooth", seed), np.random.default_rng(1).normal(size=(20, 8))
    runs = (MGRIT(coarsening, iterations=n, tolerance=0.0) for n in range(1, 6))
    return [mgrit_forward(net, x, each, is_compared=True).error for each in runs]


@pytest.fixture(scope="module")
def speeds():
    """Medians of errors and of mean factors over three seeds, until rounding."""
    found = {}
    for row in SPEEDS:
        errors = np.array([errors_of(*row, seed) for seed in range(3)])
        kept = max(2, int(np.sum(np.median(errors, axis=0) > FLOOR)))
        factor = np.median((errors[:, kept - 1] / errors[:, 0]) ** (1 / (kept - 1)))
        found[row] = np.median(errors, axis=0), float(factor)
    return found


def test_factors_are_those_that_other_code_found(speeds):
    """The iteration of Guenther et al. (2020): two levels, FCF, eight channels.  All numbers are ours."""
    print(
        "\nparallel in depth: T, N, coarsening, weights; errors of five iterations, mean factor (of an earlier script)"
    )
    for row, (before, wanted) in SPEEDS.items():
        errors, factor = speeds[row]
        texts = (" ".join(f"{each:.0e}" for each in numbers) for numbers in (errors, before))
        print("  {:4.0f} {:5d} {:3d} {:6}: {} ({}); {:.2g} ({})".format(*row, *texts, factor, wanted))
        assert wanted / LIKE < factor < wanted * LIKE
    assert speeds[1.0, 1024, 4, "smooth"][0][3] < FLOOR


def test_factors_fall_with_depth_and_with_smoothness_of_the_weights(speeds):
    factor = {row: found[1] for row, found in speeds.items()}
    deep = [factor[20.0, steps, 4, "smooth"] for steps in (64, 256, 1024)]
    assert deep[1] < deep[0] / 2
    assert deep[2] < deep[1] / 2
    gain = factor[5.0, 256, 4, "random"] / factor[5.0, 256, 4, "smooth"]
    print(f"  smooth weights converge {gain:.1f} times (7 times before) faster per iteration than random ones")
    assert 7 / LIKE < gain < 7 * LIKE


def test_short_nets_of_many_layers_converge_to_rounding_in_four_iterations():
    net = along_depth(1.0, 1024)
    x = np.random.default_rng(1).normal(size=(20, 8))
    found = mgrit_gradient(net, x, half_square, MGRIT(4, iterations=4, tolerance=0.0), is_compared=True)
    for convergence in (*found.forward, *found.adjoint):
        assert convergence.factor < 3e-3
        assert convergence.residuals[4] < ROUNDING
    assert found.error < ROUNDING


def test_smooth_weights_converge_faster():
    smooth, rough = factors(along_depth(5.0, 256)), factors(along_depth(5.0, 256, is_smooth=False))
    assert max(smooth[:2]) < 0.05
    assert smooth[2] < 1e-8
    for a, b in zip(smooth[:2], rough[:2], strict=True):
        assert a < b / 4
        assert b < 0.3


def test_the_factor_falls_with_depth():
    found = np.array([factors(along_depth(20.0, steps, degree=0)) for steps in (64, 256, 1024)])
    assert (found[1:] < found[:-1] / 2).all()
    assert found[0, :2].max() < 0.5


def adams_net(*sizes, **options):
    return nets.resnet(*sizes, scheme="ab2", **options)


@pytest.mark.parametrize("make", [nets.midpoint_net, nets.leapfrog_net, adams_net], ids=lambda make: make.__name__)
def test_two_step_schemes_converge_with_the_square_of_the_step(make):
    """As one-step schemes of second order: errors of alternating sign are carried along, too, on every level."""
    found = {}
    for steps, levels in ((64, 2), (256, 2), (256, 3)):
        net = make(None, None, 8, steps, length=5.0, degree=3, controls=8)
        found[steps, levels] = factors(net, levels=levels)
    for which in (0, 1):
        assert found[64, 2][which] < 0.03
        assert found[256, 2][which] < found[64, 2][which] / 4
    assert found[256, 3][0] < 0.03
    assert found[256, 3][2] < 1e-10


def test_more_levels_need_fewer_steps_one_after_the_other():
    net = along_depth(1.0, 1024)
    x = np.random.default_rng(1).normal(size=(20, 8))
    two, five = (mgrit_forward(net, x, MGRIT(4, levels), is_compared=True) for levels in (2, 5))
    for found in (two, five):
        assert found.convergence[0].is_converged
        assert found.error < 1024 / 4 * MGRIT().tolerance  # what is missing in each interval adds up
    assert five.convergence[0].sequential_steps < 1024 / 2 < two.convergence[0].sequential_steps
    assert five.convergence[0].steps == 1024


def test_sequential_steps_are_counted():
    """A coarse run, intervals; in an iteration intervals, a coarse step from each of them, a coarse run, intervals."""
    convergence = mgrit_forward(NETS["euler"](), np.ones((1, 3)), MGRIT(4, iterations=1, tolerance=0.0)).convergence[0]
    assert convergence.sequential_steps == 4 + 4 + (4 + 1 + 4) + 4
    assert convergence.iterations == 1


def test_no_iteration_without_need():
    convergence = mgrit_forward(NETS["euler"](), np.ones((1, 3)), MGRIT(tolerance=1.0)).convergence[0]
    assert convergence.is_converged
    assert convergence.iterations == 0
    assert np.isnan(convergence.factor)


# ---- the border -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MGRIT(1), "`coarsening` must be at least 2, found 1"),
        (lambda: MGRIT(2.5), "`coarsening` must be an integer"),
        (lambda: MGRIT(levels=1), "`levels` must be at least 2"),
        (lambda: MGRIT(iterations=0), "`iterations` must be at least 1"),
        (lambda: MGRIT(tolerance=-1.0), r"`tolerance` must be a number in \[0, inf\), found -1"),
        (lambda: MGRIT(tolerance="low"), "`tolerance` must be a number, found 'low'"),
        (lambda: mgrit_forward("net", [[1.0]]), "`net` must be of the type Net, found str"),
        (lambda: mgrit_forward(nets.resnet(2, 1, 4, 8), np.ones((3, 2)), 4), "`mgrit` must be of the type MGRIT"),
        (lambda: mgrit_forward(nets.resnet(2, 1, 4, 8), np.ones((3, 2)), MGRIT(3)), "a multiple of 3 steps .* found 8"),
        (lambda: mgrit_forward(nets.resnet(2, 1, 4, 8), np.ones((3, 2)), MGRIT(4, 3)), "a multiple of 16 steps"),
        (lambda: mgrit_forward(nets.resnet(2, 1, 4, 8), np.ones((3, 5))), "2 features each"),
        (lambda: mgrit_forward(nets.resnet(2, 1, 4, 8), np.ones((3, 2)), carrier=2), "`carrier` must be callable"),
        (lambda: mgrit_forward(nets.resnet(2, 1, 4, 8, scheme="ab4"), np.ones((3, 2)), MGRIT(2)),
         "`mgrit` must have a coarsening of 3 or more for 'ab4', .* found 2"),
        (lambda: mgrit_gradient(nets.resnet(2, 1, 4, 8), np.ones((3, 2)), lambda y: 1.0), "`loss` must return a value"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_an_unknown_relaxation_is_answered_with_the_nearest():
    with pytest.raises(sn.UnknownName, match="FCF"):
        MGRIT(relaxation="FCFF")
