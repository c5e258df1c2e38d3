"""`stepnet certificate`: bounds of a stored net."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import stepnet as sn
from stepnet.cli import commands


@pytest.fixture
def stored(tmp_path):
    def save(net) -> str:
        path = str(tmp_path / "model.safetensors")
        net.save(path)
        return path

    return save


def call(*arguments: str):
    return CliRunner().invoke(commands.main, ["certificate", *arguments])


def test_a_stable_net_is_certified(stored):
    net = sn.nets.parabolic(2, 2, 4, 5, initialisation="stable", workers=1)
    result = call(stored(net))
    assert result.exit_code == 0
    assert result.output.startswith("stable: no block amplifies perturbations or gradients by more than 1\n")


def test_json_holds_what_the_function_returns(stored):
    net = sn.nets.antisymmetric(2, 2, 4, 5, length=20.0, workers=1)
    result = call(stored(net), "--json", "--limit", "5")
    assert result.exit_code == 2
    found, wanted = json.loads(result.output), sn.stability.certificate(net, limit=5.0)
    assert found["verdict"] == wanted.verdict
    assert found["lipschitz"] == wanted.lipschitz
    assert found["blocks"][0]["steps"] == wanted.blocks[0].steps.tolist()


def test_a_file_that_is_no_net_is_one_line(tmp_path):
    path = tmp_path / "wrong.safetensors"
    path.write_bytes(b"nothing")
    result = call(str(path))
    assert result.exit_code == 1
    assert "Traceback" not in result.output


def test_bounds_in_a_box(stored):
    net = sn.nets.resnet(2, 2, 4, 5, workers=1)
    result = call(stored(net), "--json", "--box", "-0.1,0.1")
    assert json.loads(result.output)["lipschitz"] == sn.stability.certificate(net, box=(-0.1, 0.1)).lipschitz
    result = call(stored(net), "--box", "small")
    assert result.exit_code == 1
    assert "`--box` must be two numbers a,b" in result.output
