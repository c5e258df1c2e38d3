"""Nets with diffusion: the paths of samples, agreement with plain NumPy, exact derivatives under every memory."""

from __future__ import annotations

import numpy as np
import pytest

import stepnet as sn
from stepnet import fields, nets
from stepnet.nets import SampleNoise
from stepnet.nets.sample_noise import repeat_noise

WIDTH, STEPS, LENGTH, BATCH = 8, 9, 1.5, 150
ROUNDING = 1e-12  # relative, of sums in another order
PRESETS = {  # with the features of the rows that the diffusion reads
    "resnet": (nets.resnet, WIDTH, {}),
    "rk4": (nets.antisymmetric, WIDTH, {"scheme": "rk4", "degree": 1}),
    "parabolic": (nets.parabolic, WIDTH, {"scheme": "midpoint"}),
    "hamiltonian": (nets.hamiltonian, WIDTH // 2, {}),
    "verlet": (nets.hamiltonian, WIDTH // 2, {"scheme": "verlet", "degree": 1}),
    "hyperbolic": (nets.hyperbolic, WIDTH, {"scheme": "verlet"}),
}
DIFFUSIONS = {
    "constant": lambda n: 0.3,
    "per channel": lambda n: fields.diffusion.per_channel((n,), 0.3),
    "multiplicative": lambda n: fields.diffusion.multiplicative((n,), 0.3),
    "state-dependent": lambda n: fields.diffusion.state_dependent(fields.dense(n), 0.3),
}
CASES = [(net, diffusion) for net in PRESETS for diffusion in DIFFUSIONS]
random = np.random.default_rng(3)
X = random.normal(size=(BATCH, 3))


def build(name: str, diffusion: str | float | None, **options) -> nets.Net:
    preset, n, numbers = PRESETS[name]
    made = DIFFUSIONS[diffusion](n) if isinstance(diffusion, str) else diffusion
    return preset(3, 2, WIDTH, STEPS, length=LENGTH, diffusion=made, **numbers, **options)


@pytest.mark.parametrize("name", PRESETS)
def test_no_noise_is_the_net_without_diffusion(name):
    assert np.array_equal(build(name, 0.0)(X), build(name, None)(X))


@pytest.mark.parametrize(("name", "diffusion"), CASES)
def test_outputs_do_not_depend_on_batch_or_threads(name, diffusion):
    net, noise = build(name, diffusion), SampleNoise(seed=5)
    whole = net(X, noise=noise)
    assert np.array_equal(net(X[37:120], noise=noise), whole[37:120])
    assert np.array_equal(build(name, diffusion, workers=1)(X, noise=noise), whole)
    for other in (SampleNoise(seed=6), SampleNoise(seed=5, path=1), None):
        assert (net(X, noise=other) != whole).all(axis=1).sum() > 0.9 * BATCH


@pytest.mark.parametrize(("name", "diffusion"), CASES)
def test_derivatives_are_exact_under_every_memory(name, diffusion, counted):
    net, noise = build(name, diffusion), SampleNoise(seed=5, keys=np.arange(BATCH))
    bar, theta_dot, x_dot = (random.normal(size=shape) for shape in ((BATCH, 2), net.theta.shape, X.shape))
    y_dot = net.tangent(X, theta_dot, x_dot, noise=noise)[1]
    found = net.gradient(X, end_gradient=bar, memory="all", noise=noise)
    pulled = found.theta @ theta_dot + np.sum(found.x * x_dot)
    assert pulled == pytest.approx(np.sum(y_dot * bar), rel=ROUNDING)
    memories = ["segments", sn.Checkpoints(slots=2), sn.Checkpoints(bytes=2_000_000)]
    if net.design.blocks[0].scheme_program.back is not None:
        memories.append("reversible")
    for memory in memories:
        other = net.gradient(X, end_gradient=bar, memory=memory, noise=noise)
        np.testing.assert_allclose(other.theta, found.theta, rtol=0, atol=ROUNDING * np.abs(found.theta).max())
        np.testing.assert_allclose(other.x, found.x, rtol=0, atol=ROUNDING * np.abs(found.x).max())
    linear = net.linearise(X, noise=noise)
    np.testing.assert_allclose(linear.tangent(theta_dot), net.tangent(X, theta_dot, noise=noise)[1], rtol=1e-12)
    assert _difference(net, theta_dot, x_dot, noise, y_dot) < 1e-7
    counted("nets x diffusion: derivatives under every memory", f"{name} {diffusion}", len(CASES))


def _difference(net, theta_dot, x_dot, noise, y_dot) -> float:
    """The relative distance of a tangent from central differences with the same noise."""
    theta, eps, ends = net.theta.copy(), 1e-6, []
    for sign in (1, -1):
        net.put(theta + sign * eps * theta_dot)
        ends.append(net(X + sign * eps * x_dot, noise=noise))
    net.put(theta)
    return np.abs((ends[0] - ends[1]) / (2 * eps) - y_dot).max() / np.abs(y_dot).max()


@pytest.mark.parametrize("diffusion", DIFFUSIONS)
def test_steps_are_those_of_numpy_on_the_brownian_path_of_the_sample(diffusion):
    net = nets.resnet(None, None, 4, STEPS, length=LENGTH, diffusion=DIFFUSIONS[diffusion](4), activation="tanh")
    net.put(random.normal(size=net.theta.shape))
    noise, w, h = SampleNoise(seed=9), net.weights, LENGTH / STEPS
    y = random.normal(size=(70, 4))
    found, paths, scale = net(y, noise=noise), noise.find_paths(y), net.design.blocks[0].field.diffusion.scale
    increments = np.array([
        sn.noise.BrownianPath(noise.find_seed(0), int(p), (0, LENGTH), STEPS, 4).increments(
            np.linspace(0, LENGTH, STEPS + 1)
        )
        for p in paths
    ])  # fmt: skip
    for k in range(STEPS):
        y = y + h * np.tanh(y @ w["blocks.0.K"][k].T + w["blocks.0.b"][k])
        g = {
            "constant": lambda y, k: 1.0,
            "multiplicative": lambda y, k: y,
            "per channel": lambda y, k: np.logaddexp(0, w["blocks.0.g"][k]),
            "state-dependent": lambda y, k: np.logaddexp(0, y @ w["blocks.0.G"][k].T + w["blocks.0.g"][k]),
        }[diffusion](y, k)
        y = y + scale * g * increments[:, k]
    np.testing.assert_allclose(found, y, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("cells", [None, 16])
@pytest.mark.parametrize(("width", "batch", "paths"), [(9, 75, 2), (17, 301, 4), (3, 40, 3)])
def test_copies_of_a_sample_see_the_paths_of_their_numbers(width, batch, paths, cells):
    """An even number of copies shares draws in pairs, which are drawn for several features at once."""
    net = nets.resnet(None, None, width, 8, length=2.0, diffusion=1.0)
    net.put(np.zeros_like(net.theta))
    noise = repeat_noise(SampleNoise(5, keys=np.arange(batch), cells=cells), batch, paths)
    rows = np.arange(0, batch * paths, 7)
    x = np.zeros((batch * paths, width))
    numbers, ends = noise.find_paths(x), net(x, noise=noise)
    if paths % 2 == 0:
        assert np.array_equal(numbers[1::2], numbers[::2] + 8)
    assert len(set(numbers)) == len(numbers)
    for row in rows:
        path = sn.noise.BrownianPath(noise.find_seed(0), int(numbers[row]), (0, 2.0), cells or 8, width)
        np.testing.assert_allclose(ends[row], path.increments(np.array([0, 2.0]))[0], rtol=0, atol=1e-13)
    alone = [net(x[:1], noise=SampleNoise(5, keys=[3], path=[k], cells=cells))[0] for k in range(paths)]
    assert np.array_equal(ends[3 * paths : 4 * paths], alone)


def test_fewer_steps_see_the_same_paths():
    """Without drift the state is the path itself, whatever the number of steps."""
    x = random.normal(size=(70, 4))
    ends = []
    for steps in (16, 8, 4):
        net = nets.resnet(None, None, 4, steps, diffusion=0.5)
        net.put(np.zeros_like(net.theta))
        ends.append(net(x, noise=SampleNoise(seed=2, cells=16)))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-13)
    np.testing.assert_allclose(ends[2], ends[0], rtol=1e-13)


def test_noise_has_the_variance_of_brownian_motion():
    net = nets.resnet(None, None, 4, 8, length=2.0, diffusion=0.5)
    net.put(np.zeros_like(net.theta))
    y = net(np.zeros((20_000, 4)), noise=SampleNoise(seed=2, keys=np.arange(20_000)))
    count = y.size
    assert abs(y.mean()) < 4 * np.sqrt(0.5 / count)
    assert y.var() == pytest.approx(0.5, abs=4 * 0.5 * np.sqrt(2 / count))
    assert np.abs(np.corrcoef(y.T) - np.eye(4)).max() < 4 / np.sqrt(20_000)


def test_single_precision_sees_the_same_paths():
    noise = SampleNoise(seed=1, keys=np.arange(BATCH))
    double = build("resnet", "state-dependent")
    single = double.astype(np.float32)
    np.testing.assert_allclose(single(X, noise=noise), double(X, noise=noise), rtol=0, atol=2e-5)


def test_convolutions_have_noise_in_every_pixel():
    K = fields.conv2d((5, 5), 2)
    field = fields.parabolic(K).with_diffusion(fields.diffusion.per_channel((2, 5, 5), 0.3))
    net = nets.Net(nets.Design((nets.Block(field, "euler", 4),)))
    x = random.normal(size=(3, 2, 5, 5))
    y, plain = net(x), nets.Net(nets.Design((nets.Block(fields.parabolic(K), "euler", 4),)))(x)
    assert (y != plain).all()


def test_a_net_with_noise_is_stored_with_its_diffusion(tmp_path):
    for name, diffusion in (("resnet", "state-dependent"), ("verlet", "constant")):
        net = build(name, diffusion)
        net.save(tmp_path / "net.safetensors")
        again = nets.load(tmp_path / "net.safetensors")
        assert np.array_equal(again(X), net(X))
        assert again.identity == net.identity != build(name, None).identity


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nets.resnet(3, 2, 8, 4, diffusion=-0.1), "`diffusion` must be a number in"),
        (lambda: nets.resnet(3, 2, 8, 4, diffusion="loud"), "`diffusion` must be a number"),
        (lambda: nets.midpoint_net(3, 2, 8, 4, diffusion=0.1), "one-step scheme, found 'midpoint_two_step'"),
        (lambda: nets.mlp(3, 2, 8, 4, diffusion=0.1), "one-step scheme, found 'no skip'"),
        (
            lambda: nets.resnet(3, 2, 8, 4, diffusion=fields.diffusion.multiplicative((4,), 0.1)),
            "`diffusion` must take 8 features",
        ),
        (lambda: build("resnet", "constant")(X, noise=7), "`noise` must be a SampleNoise"),
        (lambda: build("resnet", "constant")(X, noise=SampleNoise(keys=np.arange(4))), "`keys` must be one number"),
        (lambda: build("resnet", "constant")(X, noise=SampleNoise(cells=10)), "`cells` must be a multiple of the 9"),
        (lambda: SampleNoise(keys=[0.5]), "`keys` must be one integer"),
        (lambda: SampleNoise(path=-1), "`path` must not be negative"),
        (lambda: build("resnet", "constant").problem(X), "`block` 0 has noise"),
        (lambda: build("resnet", "constant").gradient(X, lambda y: (0.0, y), memory="reversible"), "reversible"),
    ],
)
def test_wrong_noise_is_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
