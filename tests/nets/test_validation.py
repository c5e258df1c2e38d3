"""Clear errors for wrong designs and inputs; nets are read from files with bitwise equal weights."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from fields.zoo import RING

import stepnet as sn
from stepnet import fields, nets
from stepnet.nets import Block, Design, Net

X = np.ones((3, 2))
FIELD = fields.residual(fields.dense(3))
BLOCK = Block(FIELD, "rk4", 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nets.resnet(2, 1, 4, 0), "`steps` must be"),
        (lambda: nets.resnet(2, 1, 4, 2.5), "`steps` must be"),
        (lambda: nets.resnet(2, 1, 0, 3), "`channels_in` must be at least 1, found 0"),
        (lambda: nets.resnet(2, 1, 4, 3, length=-1.0), "`length` must be a positive number"),
        (lambda: nets.hamiltonian(2, 1, 5, 3), "`width` must be even"),
        (lambda: nets.hamiltonian(2, 1, 4, 3, scheme="euler"), "must be a splitting scheme such as 'verlet'"),
        (lambda: nets.resnet(2, 1, 4, 3, scheme="verlet"), "such as 'euler'"),
        (lambda: nets.midpoint_net(2, 1, 4, 0), "`steps` must be at least 1"),
        (lambda: nets.resnet(2, 1, 4, 2, scheme="ab4"), "`steps` must be at least 3"),
        (lambda: nets.resnet(2, 1, 4, 3, dtype=np.int32), "`dtype` must be float64 or float32"),
        (lambda: nets.resnet(6, 1, 4, 3, opening="augment"), "`width` must be at least the 6 inputs"),
        (lambda: nets.node_net(RING, 6, 1, 4, 3, opening="augment"), "`channels` must be at least the 6 inputs"),
        (lambda: fields.graph(np.diag([1.0, 0.0]), 2), "isolated nodes"),
        (lambda: fields.graph(np.ones((2, 3)), 2), "`adjacency` must be square"),
        (lambda: fields.graph([[0, 1], [2, 0]], 2), "must be symmetric"),
        (lambda: fields.antisymmetric(fields.dense(3, 4)), "K must be square"),
        (lambda: fields.residual(fields.dense(3, 4)), "as many features as it takes"),
        (lambda: fields.antisymmetric(fields.Attention(2, 2)), "linear in the state"),
        (lambda: fields.Attention(3, 4, heads=3), "`heads` must divide"),
        (lambda: fields.Normalisation(3, eps=0.0), "`eps` must be positive"),
        (lambda: fields.Normalisation(3, eps="a"), "`eps` must be positive"),
        (lambda: fields.Layer(fields.Normalisation(3), None, None, is_transposed=True), "cannot be transposed"),
        (lambda: fields.conv1d(5, 2, taps=2), "`taps` must be odd"),
        (lambda: fields.conv1d(5, 2, taps=-1), "`taps` must be at least 1, found -1"),
        (lambda: fields.conv1d(5, 2, taps=3.0), "`taps` must be an integer, found"),
        (lambda: fields.conv1d(5, 2, taps="3"), "`taps` must be an integer, found"),
        (lambda: fields.conv1d(5, 2, taps=(3,)), "`taps` must be an integer, found"),
        (lambda: fields.conv2d(5, 2), "`shape` must be two whole numbers"),
        (lambda: fields.conv2d((5, 5, 5), 2), "`shape` must be two whole numbers"),
        (lambda: fields.graph(np.ones(3), 2), "`adjacency` must be square"),
        (lambda: fields.graph(np.zeros((0, 0)), 2), "`adjacency` must be square with a row for every node"),
        (lambda: fields.graph("ring", 2), "`adjacency` must be a matrix of numbers"),
        (lambda: fields.pooling((5,), 2), "`size` must divide"),
        (lambda: fields.Depth(2, 3), "`controls` must be more than the degree"),
        (lambda: fields.Depth(5, 7), "`degree` must be 0, 1, 2 or 3"),
        (lambda: fields.mlp((3,)), "`widths` must hold at least 2"),
        (lambda: Design(()), "`blocks` must hold at least one"),
        (lambda: Design(BLOCK), "`blocks` must be a tuple of Blocks, found one Block"),
        (lambda: Design((FIELD,)), "`blocks` must hold Blocks only"),
        (lambda: Design((BLOCK,), fields.dense(2, 3)), "`opening` must be a Chain"),
        (lambda: Design((BLOCK,), readout=FIELD), "`readout` must be a Chain"),
        (lambda: Design((BLOCK, BLOCK), joins=(BLOCK,)), "`joins` must hold Chains only"),
        (lambda: Block(FIELD, 5, 3), "`scheme` must be a scheme, its name or None, found 5"),
        (lambda: Block("residual", "euler", 3), "`field` must be a Field"),
        (lambda: Block(FIELD.parts[0], "euler", 3), "`field` must be a Field"),
        (lambda: Block(FIELD, "euler", 3, depth=3), "`depth` must be a Depth"),
        (lambda: nets.parabolic_cnn((8, 8), (4,), 0), "`steps` must be at least 1, found 0"),
        (lambda: nets.parabolic_cnn((8, 8), 4, 2), "`channels` must be whole numbers"),
        (lambda: nets.parabolic_cnn((8, 8), (), 2), "`channels` must hold a number"),
        (lambda: nets.neural_ode(2, 1, 4, 3), "`hidden` must be whole numbers"),
        (lambda: nets.neural_ode(None, 1, (4,), 3), "`width` must be given"),
        (lambda: nets.resnet(2, 1, 4, 3, workers=0), "`workers` must be at least 1, found 0"),
        (lambda: nets.resnet(2, 1, 4, 3, workers=-1), "`workers` must be at least 1, found -1"),
        (lambda: nets.resnet(2, 1, 4, 3, workers=1.5), "`workers` must be an integer"),
        (lambda: nets.resnet(2, 1, 4, 3, workers="2"), "`workers` must be an integer"),
        (lambda: nets.resnet(2, 1, 4, 3, memory=None), "`memory` must be one of"),
        (lambda: Net(Design((BLOCK,)), np.zeros(3)), "`theta` must have the shape"),
        (lambda: Net("resnet"), "`design` must be a Design"),
        (lambda: Design((BLOCK,), fields.affine(fields.dense(2))), "opening gives 2 features"),
        (lambda: Design((BLOCK, BLOCK, BLOCK), joins=(fields.affine(fields.dense(3)),)), "`joins` must hold 2 chains"),
    ],
)  # fmt: skip
def test_wrong_designs_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message.replace("(", r"\(")):
        make()


@pytest.mark.parametrize(
    ("make", "nearest"),
    [
        (lambda: nets.resnet(2, 1, 4, 3, activation="tan"), "tanh"),
        (lambda: nets.resnet(2, 1, 4, 3, scheme="eular"), "euler"),
        (lambda: nets.resnet(2, 1, 4, 3, norm="layers"), "layer"),
        (lambda: nets.resnet(2, 1, 4, 3, initialisation="glorott"), "glorot"),
        (lambda: nets.graph_ode(RING, 2, 3, filter="laplacien"), "laplacian"),
        (lambda: nets.graph_ode(RING, 2, 3, dynamics="parabola"), "parabolic"),
        (lambda: fields.conv1d(4, 1, padding="zeros"), "zero"),
        (lambda: nets.resnet(2, 1, 4, 3, opening="dence"), "dense"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(make, nearest):
    with pytest.raises(sn.UnknownName, match=nearest):
        make()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net: net(np.ones((3, 5))), "2 features each"),
        (lambda net: net(np.ones(2)), "shape \\(batch, ...\\)"),
        (lambda net: net(np.ones((0, 2))), "found the shape"),
        (lambda net: net([["a", "b"]]), "array of numbers"),
        (lambda net: net([[np.nan, 1.0]]), "must be finite"),
        (lambda net: net([[1.0, 2.0], [3.0]]), "array of numbers"),
        (lambda net: net(X * 1j), "`x` must be real"),
        (lambda net: net.put(net.theta * 1j), "`theta` must be real"),
        (lambda net: net.astype("float32")([[1e300, 1.0]]), "`x` must be within the range of float32, found 1e"),
        (lambda net: net.gradient(X), "either `loss` or `end_gradient`"),
        (lambda net: net.gradient(X, end_gradient=np.ones((3, 2))), "the shape \\(3, 1\\) of the outputs"),
        (lambda net: net.gradient(X, lambda y: 1.0), "`loss` must return a value and its gradient"),
        (lambda net: net.gradient(X, lambda y: (1.0, y, y)), "`loss` must return a value and its gradient"),
        (lambda net: net.gradient(X, lambda y: (y, y)), "`loss` must return a number as its value"),
        (lambda net: net.gradient(X, lambda y: (len(5), y)), "object of type 'int' has no len"),
        (lambda net: net.gradient(X, 3), "`loss` must be a function"),
        (lambda net: net.parameter_gradient(X, None), "`loss` must be a function"),
        (lambda net: nets.mgrit_gradient(net, X, None, nets.MGRIT(3)), "`loss` must be a function"),
        (lambda net: net.gradient(X, end_gradient=np.ones((3, 1)), memory="none"), "`memory` must be one of"),
        (lambda net: net.gradient(X, end_gradient=np.ones((3, 1)), memory="reversible"), "invertible steps"),
        (lambda net: net.tangent(X, np.ones(3)), "`theta_dot` must have"),
        (lambda net: net.tangent(X, x_dot=np.ones((2, 3))), "`x_dot` must have the shape \\(3, 2\\) of `x`"),
        (lambda net: net.gauss_newton(X, np.ones(3)), "`theta_dot` must have"),
        (lambda net: net.linearise(X).tangent(np.ones(3)), "`theta_dot` must have"),
        (lambda net: net.linearise(X).pullback(np.ones((200, 1))), "`outputs_bar` must have the shape \\(3, 1\\)"),
        (lambda net: net.linearise(X, memory="segments").tangent(np.ones(3)), "`theta_dot` must have"),
        (lambda net: net.features(X, 1), "`block` must be a number below 1"),
        (lambda net: net.put(np.ones(2)), "`theta` must have the shape"),
        (lambda net: net.refine(0), "`factor` must be at least 1, found 0"),
        (lambda net: net.refine(1.5), "`factor` must be an integer, found 1.5"),
        (lambda net: nets.mlp(2, 1, 4, 3).problem(X), "`block` 0 has no scheme"),
    ],
)
def test_wrong_inputs_are_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(nets.resnet(2, 1, 4, 3))


def test_memory_of_a_net_is_not_on_disk(tmp_path):
    with pytest.raises(ValueError, match="leave out `disk`"):
        nets.resnet(2, 1, 4, 3).gradient(X, end_gradient=np.ones((3, 1)), memory=sn.Checkpoints(2, disk=tmp_path))


PRESETS = {
    "resnet": (2, 1, 4, 3), "antisymmetric": (2, 1, 4, 3), "parabolic": (2, 1, 4, 3), "hamiltonian": (2, 1, 4, 3),
    "hyperbolic": (2, 1, 4, 3), "midpoint_net": (2, 1, 4, 3), "leapfrog_net": (2, 1, 4, 3), "mlp": (2, 1, 4, 3),
    "neural_ode": (2, 1, (4,), 3), "graph_ode": (RING, 2, 3), "node_net": (RING, 2, 3, 4, 3),
    "attention_net": (3, 4, 2), "parabolic_cnn": ((4, 4), (2, 4), 2),
}  # fmt: skip


def test_every_preset_is_here():
    assert set(PRESETS) == set(nets.PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_the_gradient_of_parameters_alone_is_the_same(name):
    net = nets.PRESETS[name](*PRESETS[name], seed=3)
    x = np.random.default_rng(5).normal(size=(70, net.design.n_in))
    both, alone = net.gradient(x, half_square), net.parameter_gradient(x, half_square)
    np.testing.assert_array_equal(alone.theta, both.theta)
    assert (alone.value, alone.x) == (both.value, None)


def half_square(y):
    return 0.5 * np.sum(y * y), y


@pytest.mark.parametrize("norm", [None, "rms"])
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_saved_nets_give_the_same_bits(name, dtype, norm, tmp_path):
    options = {} if norm is None else {"norm": norm}
    net = nets.PRESETS[name](*PRESETS[name], dtype=dtype, seed=3, **options)
    x = np.random.default_rng(0).normal(size=(5, net.design.n_in))
    net.save(tmp_path / "net.safetensors")
    found = nets.load(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(found.theta, net.theta)
    np.testing.assert_array_equal(found(x), net(x))
    assert repr(found) == repr(net)
    assert str(net.theta.size) in repr(net)


def test_a_net_is_the_same_in_another_process(tmp_path):
    net = nets.hamiltonian(3, 2, 40, 20, degree=3, seed=5)
    x = np.random.default_rng(1).normal(size=(70, 3))
    net.save(tmp_path / "net.safetensors")
    np.save(tmp_path / "x.npy", x)
    code = ("import numpy as np, stepnet as sn; net = sn.nets.load('net.safetensors'); x = np.load('x.npy'); "
            "np.save('y.npy', net(x)); np.save('g.npy', net.gradient(x, end_gradient=net(x)).theta)")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), net(x))
    np.testing.assert_array_equal(np.load(tmp_path / "g.npy"), net.gradient(x, end_gradient=net(x)).theta)


def test_files_that_are_no_nets_are_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.ones(3)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="is not a net"):
        nets.load(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "scheme",
    [
        sn.schemes.get("rkc2"),
        sn.schemes.get("rkc2", stages=20),
        sn.schemes.stabilised.rkc1(5, damping=0.2),
        sn.schemes.ExplicitRK("mine", order=2, a=((), (1.0,)), b=(0.5, 0.5), reference="mine"),
        sn.schemes.get("dopri5"),
        sn.schemes.get("ab3"),
    ],
    ids=lambda scheme: scheme.name,
)
def test_any_scheme_comes_back_from_a_file(scheme, tmp_path):
    net = nets.parabolic(2, 1, 4, 5, scheme=scheme)
    net.save(tmp_path / "net.safetensors")
    found = nets.load(tmp_path / "net.safetensors")
    assert found.design.blocks[0].scheme == scheme
    np.testing.assert_array_equal(found(X), net(X))


@pytest.mark.parametrize("memory", ["auto", "reversible", sn.Checkpoints(3), sn.Checkpoints(bytes=10**7)], ids=str)
def test_memory_comes_back_from_a_file(memory, tmp_path):
    nets.hamiltonian(2, 1, 4, 3, memory=memory, workers=1).save(tmp_path / "net.safetensors")
    found = nets.load(tmp_path / "net.safetensors")
    assert (found.memory, found.workers) == (memory, None)


@pytest.mark.parametrize("K", [fields.resized(2, 2), fields.Normalisation(2)], ids=lambda K: K.name)
def test_a_net_without_parameters_comes_back_from_a_file(K, tmp_path):
    chain = fields.Chain((fields.Layer(K, None, None, "tanh"),))
    net = Net(Design((Block(fields.chained(chain), "euler", 2),)))
    net.save(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(nets.load(tmp_path / "net.safetensors")(X), net(X))


@pytest.mark.parametrize(
    "header",
    ["{", "[]", "{}", '{"format": 1}', '{"format": 1, "dtype": "float64", "design": {"record": "Design"}}',
     '{"format": 1, "dtype": "float64", "design": {"record": "Nothing"}}'],
)  # fmt: skip
def test_broken_headers_are_refused(header, tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.ones(2)}, tmp_path / "x.safetensors", metadata={"stepnet": header})
    with pytest.raises(ValueError, match="holds a net that cannot be built"):
        nets.load(tmp_path / "x.safetensors")


def test_junk_and_other_formats_are_refused(tmp_path):
    from safetensors.numpy import save_file

    (tmp_path / "junk.safetensors").write_text("hello")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        nets.load(tmp_path / "junk.safetensors")
    save_file({"x": np.ones(2)}, tmp_path / "x.safetensors", metadata={"stepnet": '{"format": 99}'})
    with pytest.raises(ValueError, match="has the format 99"):
        nets.load(tmp_path / "x.safetensors")


def test_a_loss_may_write_into_what_it_gets():
    def shifted(y):
        y -= 1
        return 0.5 * np.sum(y * y), y

    net = nets.resnet(2, 1, 4, 3)
    found = net.gradient(X, shifted)
    np.testing.assert_array_equal(found.outputs, net(X))
    np.testing.assert_array_equal(found.theta, net.gradient(X, lambda y: (0.0, y - 1)).theta)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
@pytest.mark.parametrize(("width", "batch"), [(8, 64), (520, 64), (8, 700)], ids=["registers", "BLAS", "threads"])
def test_a_net_that_has_run_is_copied_without_its_workspace(width, batch, copied):
    net, x = nets.resnet(2, 2, width, 3, workers=2), np.ones((batch, 2))
    net.gradient(x, end_gradient=net(x))
    other = copied(net)
    assert "_execution" not in vars(other)
    np.testing.assert_array_equal(other(x), net(x))
    other.put(np.zeros(other.theta.size))
    assert net.theta.any()


def test_weights_are_views_of_one_vector():
    net = nets.resnet(2, 3, 4, 5)
    assert list(net.weights) == ["opening.K", "opening.b", "blocks.0.K", "blocks.0.b", "readout.W", "readout.b"]
    assert net.weights["blocks.0.K"].shape == (5, 4, 4)
    net.weights["readout.b"][...] = 7.0
    np.testing.assert_array_equal(net.theta[-3:], 7.0)
