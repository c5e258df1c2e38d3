"""Presets accept the documented options, and initial weights have the stated properties."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from fields.zoo import RING

from stepnet import fields, nets
from stepnet.fields import reference
from stepnet.nets import MGRIT, Block, Design, Net, initialisation, mgrit_gradient
from stepnet.nets.initialisation import find_largest_norm, find_norm

PRESETS = {
    "resnet": (2, 1, 4, 3), "antisymmetric": (2, 1, 4, 3), "parabolic": (2, 1, 4, 3), "hamiltonian": (2, 1, 4, 3),
    "hyperbolic": (2, 1, 4, 3), "midpoint_net": (2, 1, 4, 3), "leapfrog_net": (2, 1, 4, 3), "mlp": (2, 1, 4, 3),
    "neural_ode": (2, 1, (4,), 3), "graph_ode": (RING, 2, 3), "node_net": (RING, 2, 3, 4, 3),
    "attention_net": (3, 4, 3), "parabolic_cnn": ((4, 4), (2, 4), 3),
}  # fmt: skip
SHAPED = {"graph_ode": (RING, 4, 3), "node_net": (RING, 2, 3, 4, 3), "attention_net": (3, 4, 3),
          "parabolic_cnn": ((4, 4), (2, 4), 3)}  # fmt: skip


def outputs(net):
    return net(np.random.default_rng(0).normal(size=(3, net.design.n_in)))


@pytest.mark.parametrize("options", [
    {"length": 2.0}, {"activation": "relu"}, {"norm": "rms"}, {"degree": 1}, {"degree": 3, "controls": 5},
    {"controls": 1}, {"opening": "augment"}, {"opening": "dense"}, {"memory": "segments", "workers": 1, "seed": 5},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_takes_every_option(name, options):
    net = nets.PRESETS[name](*PRESETS[name], **options)
    assert np.isfinite(outputs(net)).all()
    depths = {block.depth for block in net.design.blocks}
    if "controls" in options and "degree" not in options and name != "neural_ode":
        assert depths == {fields.HeldWeights(options["controls"])}
    elif "controls" in options:
        assert depths == {fields.Depth(options["controls"], options.get("degree", 0))}
    elif "degree" in options:
        assert depths == {fields.Depth(3 + options["degree"], options["degree"])}


@pytest.mark.parametrize(
    ("name", "dynamics"),
    [pair for pair in product(SHAPED, fields.DYNAMICS) if pair != ("attention_net", "antisymmetric")],
)
def test_every_dynamics_has_a_scheme_by_default(name, dynamics):
    net = nets.PRESETS[name](*SHAPED[name], dynamics=dynamics)
    assert np.isfinite(outputs(net)).all()


def test_inputs_and_outputs_may_be_left_out():
    assert nets.node_net(RING, None, None, 4, 3).design.n_in == 20
    assert nets.parabolic_cnn((4, 4), (2,), 3, inputs=None).design.n_in == 32
    assert nets.neural_ode(2, None, (4,), 3).design.n_out == 2


def test_a_dense_opening_is_there_if_it_was_asked_for():
    assert "opening.K" in nets.neural_ode(2, 1, (4,), 3, opening="dense").weights
    assert "opening.K" not in nets.neural_ode(2, 1, (4,), 3).weights


def test_zero_channels_are_added_to_images():
    net = nets.parabolic_cnn((4, 4), (3,), 2, opening="augment")
    x = np.random.default_rng(1).normal(size=(2, 16))
    np.testing.assert_array_equal(net.features(x)[0], np.concatenate((x, np.zeros((2, 32))), axis=1))


def test_a_block_shows_its_whole_chain():
    shown = repr(nets.neural_ode(2, 1, (8, 5), 3).design.blocks[0])
    for part in ("dense 2 -> 8 tanh", "dense 8 -> 5 tanh", "dense 5 -> 2 identity"):
        assert part in shown


# ---- initial weights ------------------------------------------------------------------------------------------------


def test_orthogonal_matrices_of_attention_are_orthogonal():
    for W in nets.attention_net(3, 8, 2, initialisation="orthogonal").weights["blocks.0.K"].reshape(-1, 8, 8):
        np.testing.assert_allclose(W @ W.T, np.eye(8), atol=1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_norm_of_attention_is_a_bound_for_all_states(heads, is_causal):
    K, random = fields.Attention(5, 4, heads, is_causal), np.random.default_rng(heads)
    for scale in (0.1, 1.0, 10.0):
        W, x = scale * random.normal(size=K.weight_shape), random.normal(size=(K.n_in, 1))
        matrix = reference.apply(K, W, np.repeat(x, K.n_in, axis=1), np.eye(K.n_in))
        assert np.linalg.norm(matrix, 2) <= find_norm(fields.Layer(K), W) * (1 + 1e-12)


NORMED = {
    "dense": fields.Layer(fields.dense(40, 24)),
    "antisymmetric": fields.Layer(fields.dense(24), is_antisymmetric=True),
    "convolution": fields.Layer(fields.conv2d((6, 5), 3, 2)),
    "antisymmetric convolution": fields.Layer(fields.conv2d((6, 5), 2), is_antisymmetric=True),
}


@pytest.mark.parametrize("name", NORMED)
def test_powers_of_a_matrix_find_the_norm_that_its_singular_values_give(name, monkeypatch):
    """From below, and up to tan^2 / 4 (s_2 / s_1)^{4 (n - 1)}, with the angle between start and singular vector.

    For a random start in d dimensions tan^2 is about d.
    """
    layer = NORMED[name]
    K, random = layer.connectivity, np.random.default_rng(4)
    for scale in (1e-3, 1.0, 1e3):
        W = scale * random.normal(size=K.weight_shape)
        monkeypatch.setattr(initialisation, "SMALL", K.n_in)
        by_values = find_norm(layer, W)
        monkeypatch.setattr(initialisation, "SMALL", K.n_in - 1)
        by_powers = find_norm(layer, W)
        unit = np.eye(K.n_in)
        values = np.linalg.svd(reference.apply(K, reference.effective(layer, W), unit, unit), compute_uv=False)
        second = values[values < values[0] * (1 - 1e-9)][0]
        bound = K.n_in / 4 * (second / values[0]) ** (4 * (initialisation.POWERS - 1))
        assert by_values == pytest.approx(values[0], rel=1e-14)
        assert -1e-14 <= 1 - by_powers / by_values <= min(bound, 5e-4) + 1e-14


@pytest.mark.parametrize("length", [0.1, 300.0])
def test_stable_weights_of_attention_keep_to_their_bound(length):
    net = nets.attention_net(5, 4, 3, heads=2, length=length, initialisation="stable")
    block = net.design.blocks[0]
    layer, bound = block.field.parts[0].layers[0], find_largest_norm(block)
    norms = [find_norm(layer, W) for W in net.weights["blocks.0.K"]]
    assert max(norms) <= bound * (1 + 1e-12)
    plain = nets.attention_net(5, 4, 3, heads=2, length=length).weights["blocks.0.K"]
    for found, before in zip(net.weights["blocks.0.K"], plain, strict=True):
        assert min(1.0, bound / find_norm(layer, before)) * find_norm(layer, before) <= find_norm(layer, found) * (
            1 + 1e-12
        )


def test_stable_steps_of_a_chain_are_invertible():
    """h times the product of all slopes stays below one."""
    block = Block(fields.chained(fields.mlp((3, 20, 20, 3), "gelu")), "euler", 4, 40.0)
    net = Net(Design((block,)), initialisation="stable")
    slope = np.prod([np.linalg.norm(net.weights[f"blocks.0.K{i}"][0], 2) for i in (1, 2, 3)]) * 1.1289042**2
    assert 0.5 < block.h * slope < 1


def test_parallel_depth_converges_in_single_precision():
    net = nets.resnet(2, 3, 8, 64, length=4.0, dtype=np.float32)
    x = np.random.default_rng(0).normal(size=(20, 2))
    found = mgrit_gradient(net, x, lambda y: (0.5 * np.sum(y * y), y), is_compared=True)
    assert all(each.is_converged for each in (*found.forward, *found.adjoint))
    assert found.error < 1e-4
    assert MGRIT(tolerance=0.0).within(np.float32).tolerance == 0.0
    assert MGRIT().within(np.float64) == MGRIT()


@pytest.mark.parametrize("name", PRESETS)
def test_a_net_from_a_file_has_the_identity_of_the_one_that_was_stored(name, tmp_path):
    net = nets.PRESETS[name](*PRESETS[name])
    net.save(tmp_path / "net.safetensors")
    assert nets.load(tmp_path / "net.safetensors").identity == net.identity
    assert nets.PRESETS[name](*PRESETS[name], dtype="float32").identity != net.identity
