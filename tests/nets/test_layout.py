"""Inputs of several axes have the stated layout, or are refused: axes are never confused."""

from __future__ import annotations

import numpy as np
import pytest
from fields.zoo import RING

import stepnet as sn
from stepnet import fields, nets, training
from stepnet.nets import MGRIT, Block, Design, Net, NodeModel

EQUAL = 1e-12  # relative; the same numbers in another order
BATCH = 5
NODES = RING.shape[0]
MAKERS = {
    "images": lambda **how: nets.parabolic_cnn((4, 6), (2, 4), 3, inputs=3, outputs=2, **how),
    "images, Hamiltonian": lambda **how: nets.parabolic_cnn((4, 6), (4,), 3, inputs=3, dynamics="hamiltonian", **how),
    "images, zeros added": lambda **how: nets.parabolic_cnn((4, 6), (4,), 3, inputs=3, opening="augment", **how),
    "images, no opening": lambda **how: nets.parabolic_cnn((4, 6), (4,), 3, inputs=None, **how),
    "images, pooled first": lambda **how: pooled(**how),
    "line": lambda **how: block_net(fields.residual(fields.conv1d(7, 3)), "euler", **how),
    "line, two halves": lambda **how: block_net(fields.hyperbolic(fields.conv1d(7, 3)), "verlet", **how),
    "tokens": lambda **how: nets.attention_net(7, 4, 3, heads=2, **how),
    "tokens with a read-out": lambda **how: nets.attention_net(7, 4, 3, outputs=2, **how),
    "graph": lambda **how: nets.graph_ode(RING, 3, 4, **how),
    "graph with outputs at nodes": lambda **how: nets.node_net(RING, 3, 2, 4, 4, **how),
    "graph, zero channels added": lambda **how: nets.node_net(RING, 3, 2, 4, 4, opening="augment", **how),
    "set": lambda **how: block_net(fields.residual(fields.equivariant(7, 3)), "euler", **how),
    "normalised nodes": lambda **how: block_net(fields.residual(fields.nodewise(7, 3), norm="layer"), "rk4", **how),
}  # fmt: skip
over_nets = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))


def block_net(field, scheme, **how) -> Net:
    return Net(Design((Block(field, scheme, 3),)), **how)


def pooled(**how) -> Net:
    change = fields.Layer(fields.conv2d((2, 3), 3, 4))
    opening = fields.Chain((fields.Layer(fields.pooling((4, 6), 3), None, None), change))
    return Net(Design((Block(fields.residual(fields.conv2d((2, 3), 4)), "euler", 3),), opening), **how)


def inputs(net) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(BATCH, *net.input_shape))


def near(found, wanted) -> bool:
    return np.linalg.norm(found - wanted) <= EQUAL * np.linalg.norm(wanted)


def last(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, 1, -1)


@over_nets
def test_the_stated_shape_and_its_flat_vector_are_taken(make):
    for layout in ("channels_first", "channels_last"):
        net = make(layout=layout)
        x = inputs(net)
        assert len(net.input_shape) > 1
        assert np.array_equal(net(x), net(x.reshape(BATCH, -1)))


@over_nets
def test_other_shapes_with_as_many_numbers_are_refused(make):
    for layout, other in (("channels_first", "channels_last"), ("channels_last", "channels_first")):
        net = make(layout=layout)
        x = inputs(net)
        size = x[0].size
        for shape in {(size, 1), (1, size), net.input_shape[::-1], (*net.input_shape, 1)} - {net.input_shape}:
            with pytest.raises(ValueError, match=r"`x` must have the shape \(batch, \d+, .*found the shape"):
                net(x.reshape(BATCH, *shape))
        with pytest.raises(ValueError, match=f"give `layout`='{other}'"):
            net(np.ones((BATCH, *make(layout=other).input_shape)))


def test_errors_name_the_axes():
    net = MAKERS["images"]()
    with pytest.raises(ValueError, match=r"\(batch, 3, 4, 6\), that is \(batch, channels, height, width\)"):
        net(np.ones((BATCH, 3, 6, 4)))
    with pytest.raises(ValueError, match=r"or be flat in that order, \(batch, 72\), found the shape \(5, 3, 6, 4\)"):
        net(np.ones((BATCH, 3, 6, 4)))
    with pytest.raises(ValueError, match=r"\(batch, 4, 6, 3\), that is \(batch, height, width, channels\)"):
        MAKERS["images"](layout="channels_last")(np.ones((BATCH, 6, 4, 3)))
    with pytest.raises(ValueError, match=r"\(batch, 4, 7\), that is \(batch, channels, nodes\)"):
        MAKERS["tokens"]()(np.ones((BATCH, 7, 4)))
    with pytest.raises(sn.UnknownName, match="channels_last"):
        MAKERS["images"](layout="channel_last")


@over_nets
def test_layouts_give_the_same_numbers(make):
    """Outputs, gradients, tangents, Gauss-Newton products, in the order of the layout."""
    net, other = make(), make(layout="channels_last")
    x = inputs(net)
    axes = net.design.axes_out
    is_flat = len(axes) == 1
    out = (lambda y: y) if is_flat else (lambda y: last(y.reshape(BATCH, *axes)).reshape(BATCH, -1))
    y = net(x)
    assert near(other(last(x)), out(y))
    bar = np.random.default_rng(1).normal(size=y.shape)
    one, two = net.gradient(x, end_gradient=bar), other.gradient(last(x), end_gradient=out(bar))
    assert near(two.theta, one.theta)
    assert near(two.x, last(one.x))
    assert near(two.outputs, out(one.outputs))
    loss = lambda y: (float(np.sum(y**3)), 3 * y**2)
    assert near(other.gradient(last(x), loss).x, last(net.gradient(x, loss).x))
    dots = np.random.default_rng(2).normal(size=net.theta.size), np.random.default_rng(3).normal(size=x.shape)
    assert near(other.tangent(last(x), dots[0], last(dots[1]))[1], out(net.tangent(x, *dots)[1]))
    for memory in ("all", 10**7):
        near_one, near_two = net.linearise(x, memory=memory), other.linearise(last(x), memory=memory)
        assert near(near_two.outputs, out(near_one.outputs))
        assert near(near_two.tangent(dots[0]), out(near_one.tangent(dots[0])))
        assert near(near_two.pullback(out(bar)), near_one.pullback(bar))


def test_multigrid_and_the_maximum_principle_follow_the_layout():
    net, other = (nets.graph_ode(RING, 3, 4, layout=each) for each in ("channels_first", "channels_last"))
    x = inputs(net)
    out = lambda y: last(y.reshape(BATCH, 3, NODES)).reshape(BATCH, -1)
    mgrit, loss = MGRIT(2, iterations=2), lambda y: (float(np.sum(y**3)), 3 * y**2)
    assert near(nets.mgrit_forward(other, last(x), mgrit).outputs, out(nets.mgrit_forward(net, x, mgrit).outputs))
    one, two = nets.mgrit_gradient(net, x, loss, mgrit), nets.mgrit_gradient(other, last(x), loss, mgrit)
    assert near(two.gradient.theta, one.gradient.theta)
    assert near(two.gradient.x, last(one.gradient.x))
    targets = np.random.default_rng(4).normal(size=(BATCH, net.design.n_out))
    data = training.Data(x, targets), training.Data(last(x), out(targets))
    found = [
        training.minimise(training.Objective(each, nets.losses.get("mse")), some, training.MSA(iterations=3)).theta
        for each, some in zip((net, other), data, strict=True)
    ]
    assert near(found[1], found[0])


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_nodes_are_samples_in_every_layout(layout):
    inputs, numbers = np.random.default_rng(0).normal(size=(NODES, 3)), np.array([1, 4, 1])
    plain = NodeModel(nets.node_net(RING, 3, 2, 4, 4), inputs)
    model = NodeModel(nets.node_net(RING, 3, 2, 4, 4, layout=layout), inputs)
    loss = lambda y: (float(np.sum(y**3)), 3 * y**2)
    assert near(model(numbers), plain(numbers))
    assert near(model.gradient(numbers, loss).theta, plain.gradient(numbers, loss).theta)
    assert near(model.gradient(numbers, loss).x, plain.gradient(numbers, loss).x)
    direction = np.random.default_rng(1).normal(size=plain.theta.size)
    assert near(model.gauss_newton(numbers, direction), plain.gauss_newton(numbers, direction))
    with pytest.raises(ValueError, match=r"\(nodes, channels\)"):
        NodeModel(nets.node_net(RING, NODES - 1, NODES - 1, NODES - 1, 2), np.ones((NODES - 1, NODES)))


def test_layouts_are_stored(tmp_path):
    for layout in ("channels_first", "channels_last"):
        net = MAKERS["images, no opening"](layout=layout)
        net.save(tmp_path / "net")
        loaded, x = nets.load(tmp_path / "net"), inputs(net)
        assert loaded.layout == layout
        assert loaded.input_shape == net.input_shape
        assert np.array_equal(loaded(x), net(x))
        assert net.astype(np.float32).layout == net.refine().layout == layout
    assert MAKERS["images"]().identity != MAKERS["images"](layout="channels_last").identity


def test_pooled_and_augmented_images_keep_their_shape_in_files(tmp_path):
    for name in ("images, zeros added", "images, pooled first"):
        net = MAKERS[name]()
        net.save(tmp_path / "net")
        assert nets.load(tmp_path / "net").input_shape == (3, 4, 6)


def test_a_single_channel_may_be_left_out():
    net = nets.parabolic_cnn((4, 6), (2,), 3, outputs=2)
    x = np.random.default_rng(0).normal(size=(BATCH, 1, 4, 6))
    assert np.array_equal(net(x), net(x[:, 0]))
    with pytest.raises(ValueError, match="must have the shape"):
        net(x[:, 0].swapaxes(1, 2))


def test_flat_nets_take_samples_of_any_shape():
    net = nets.resnet(24, 2, 4, 3)
    x = np.random.default_rng(0).normal(size=(BATCH, 4, 6))
    assert np.array_equal(net(x), net(x.reshape(BATCH, -1)))
    assert net.input_shape == (24,)
    assert np.array_equal(nets.resnet(24, 2, 4, 3, layout="channels_last")(x), net(x))


def test_axes_that_do_not_hold_the_features_are_refused():
    with pytest.raises(ValueError, match="`axes_in` must hold 6 features"):
        fields.Fixed("half", 1, np.ones((3, 6)), (2, 2))
