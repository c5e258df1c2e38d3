"""Stored runs: no pickle, bitwise equal results after kill -9, and runs are never confused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numba_engine.runs import child
from training.models import TwoLayer, blobs

import stepnet as sn
from stepnet import training
from stepnet.training import Adam, Ending, Momentum, Objective, Recipe, WarmUp, optimisers

PROGRAM = """
import sys, time
sys.path.insert(0, {tests!r})
from training.models import TwoLayer, blobs
from stepnet import nets, training

class Slow(TwoLayer):
    def gradient(self, x, loss):
        time.sleep({pause})
        return super().gradient(x, loss)

class SlowNet(nets.Net):
    def parameter_gradient(self, x, loss):
        time.sleep({pause})
        return super().parameter_gradient(x, loss)

two_layers = Slow(2, 6, 3)
net = SlowNet(nets.hamiltonian(2, 3, 8, 10).design, seed=1, workers=2, memory="reversible")
goal = training.Objective({model}, "cross_entropy")
recipe = training.Recipe({recipe})
run = training.train(goal, blobs(), recipe, validation=blobs(40, seed=9), path=sys.argv[1], resume=True)
print(run.theta.tobytes().hex(), run.steps, run.best_epoch, [v.tobytes().hex() for v in run.history.values()])
"""
RECIPE = "training.Adam(training.Cosine(0.05, 12)), epochs=12, batch_size=20, seed=4, save_every=2"


def program(pause: float, model: str) -> str:
    return PROGRAM.format(tests=str(Path(__file__).parents[1]), pause=pause, recipe=RECIPE, model=model)


def finish(path, model: str) -> str:
    done = subprocess.run([sys.executable, "-c", program(0, model), path], capture_output=True, text=True, check=True,
                          timeout=child.PATIENCE)  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("model", [pytest.param("two_layers", marks=pytest.mark.slow), "net"])
def test_a_run_that_was_killed_goes_on_bit_for_bit(model, tmp_path):
    whole = finish(tmp_path / "whole", model)
    for _ in range(3):  # killed again and again, in the middle of epochs and of files
        state = tmp_path / "killed" / "state.safetensors"
        before = state.stat().st_mtime_ns if state.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", program(0.1, model), tmp_path / "killed"])
        deadline = time.monotonic() + child.PATIENCE
        while not (state.exists() and state.stat().st_mtime_ns > before) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.17)
        assert process.poll() is None, "the run was over before it was killed"
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(child.PATIENCE) == -signal.SIGKILL
    stored = training.load(tmp_path / "killed")
    assert 0 < stored.steps < 12 * 5
    assert finish(tmp_path / "killed", model) == whole


def goal() -> Objective:
    return Objective(TwoLayer(2, 6, 3), "cross_entropy")


@pytest.mark.parametrize("name", optimisers.names())
@pytest.mark.parametrize("steps", [3, 5, 8])
def test_a_run_cut_in_two_is_the_whole_run(name, steps, tmp_path):
    """Cut by a model that fails in the middle of an epoch."""

    class Fails(TwoLayer):
        calls = 0

        def gradient(self, x, loss):
            self.calls += 1
            if self.calls > steps:
                raise OSError("out of power")
            return super().gradient(x, loss)

    recipe = Recipe(optimisers.get(name, rate=WarmUp(0.01, 2)), epochs=4, batch_size=24, save_every=1)
    whole = training.train(goal(), blobs(), recipe, validation=blobs(seed=8))
    with pytest.raises(OSError, match="out of power"):
        training.train(
            Objective(Fails(2, 6, 3), "cross_entropy"), blobs(), recipe, validation=blobs(seed=8), path=tmp_path
        )
    assert training.load(tmp_path).steps == steps
    rest = training.train(goal(), blobs(), recipe, validation=blobs(seed=8), path=tmp_path, resume=True)
    assert rest.theta.tobytes() == whole.theta.tobytes()
    for column, values in whole.history.items():
        np.testing.assert_array_equal(rest.history[column], values)


def test_a_finished_run_is_read_back_and_may_go_on_for_more_epochs(tmp_path):
    short, long = (Recipe(Adam(0.05), epochs=epochs, batch_size=24) for epochs in (3, 7))
    first = training.train(goal(), blobs(), short, path=tmp_path)
    read = training.load(tmp_path)
    assert read.ending is Ending.COMPLETED
    assert (read.steps, read.epochs, read.message) == (first.steps, first.epochs, first.message)
    assert read.theta.tobytes() == first.theta.tobytes()
    more = training.train(goal(), blobs(), long, path=tmp_path, resume=True)
    assert more.theta.tobytes() == training.train(goal(), blobs(), long).theta.tobytes()


def test_files_are_safetensors_and_json_and_nothing_else(tmp_path):
    from safetensors.numpy import load_file

    training.train(goal(), blobs(), Recipe(Momentum(0.01), epochs=2), path=tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.json", "state.safetensors"]
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["model"]["parameters"] == 39
    assert "Momentum" in told["recipe"]["optimiser"]
    numbers = load_file(tmp_path / "state.safetensors")
    assert {"theta", "good", "best", "slots.velocity", "history"} <= set(numbers)


def test_a_directory_with_a_run_is_not_overwritten(tmp_path):
    training.train(goal(), blobs(), Recipe(epochs=1), path=tmp_path)
    with pytest.raises(ValueError, match="holds a run; set `resume=True` to continue it"):
        training.train(goal(), blobs(), Recipe(epochs=1), path=tmp_path)


@pytest.mark.parametrize(("change", "what"), [
    (lambda: (Objective(TwoLayer(2, 7, 3), "cross_entropy"), blobs(), Recipe(epochs=1)), "model"),
    (lambda: (Objective(TwoLayer(2, 6, 3), "focal"), blobs(), Recipe(epochs=1)), "loss"),
    (lambda: (goal(), blobs(seed=1), Recipe(epochs=1)), "data"),
    (lambda: (goal(), blobs(), Recipe(Adam(0.1), epochs=1)), "recipe"),
    (lambda: (goal(), blobs(), Recipe(epochs=1, batch_size=7)), "recipe"),
])  # fmt: skip
def test_another_run_is_not_gone_on_with(change, what, tmp_path):
    training.train(goal(), blobs(), Recipe(epochs=1), path=tmp_path)
    other, data, recipe = change()
    with pytest.raises(ValueError, match=f"holds another run: its {what} is"):
        training.train(other, data, recipe, path=tmp_path, resume=True)


SAME_SIZE = {
    "antisymmetric": lambda **given: sn.nets.antisymmetric(2, 3, 4, 4, **given),
    "longer": lambda **given: sn.nets.resnet(2, 3, 4, 4, length=9.0, **given),
    "another activation": lambda **given: sn.nets.resnet(2, 3, 4, 4, activation="relu", **given),
    "single precision": lambda **given: sn.nets.resnet(2, 3, 4, 4, dtype=np.float32, **given),
}


@pytest.mark.parametrize("other", SAME_SIZE)
def test_a_run_of_another_net_with_as_many_parameters_is_not_gone_on_with(other, tmp_path):
    first = sn.nets.resnet(2, 3, 4, 4)
    training.train(Objective(first, "cross_entropy"), blobs(), Recipe(epochs=1), path=tmp_path)
    net = SAME_SIZE[other]()
    assert net.theta.size == first.theta.size
    with pytest.raises(ValueError, match="holds another run: its model is"):
        training.train(Objective(net, "cross_entropy"), blobs(), Recipe(epochs=2), path=tmp_path, resume=True)
    again = training.train(
        Objective(sn.nets.resnet(2, 3, 4, 4), "cross_entropy"), blobs(), Recipe(epochs=2), path=tmp_path, resume=True
    )
    assert again.epochs == 2


def test_nodes_of_another_graph_are_another_model():
    ring = np.roll(np.eye(5), 1, axis=1) + np.roll(np.eye(5), -1, axis=1)
    net = sn.nets.node_net(ring, 2, 3, 4, 2)
    one, same, other = (
        sn.nets.NodeModel(net, inputs) for inputs in (np.ones((5, 2)), np.ones((5, 2)), np.eye(5)[:, :2])
    )
    assert one.identity == same.identity != other.identity


def test_a_run_that_goes_on_began_with_the_parameters_that_are_given(tmp_path):
    theta = np.linspace(-1, 1, 39)
    training.train(goal(), blobs(), Recipe(epochs=1), theta=theta, path=tmp_path)
    assert training.train(goal(), blobs(), Recipe(epochs=2), theta=theta, path=tmp_path, resume=True).epochs == 2
    with pytest.raises(ValueError, match="holds another run: its theta is"):
        training.train(goal(), blobs(), Recipe(epochs=3), theta=-theta, path=tmp_path, resume=True)


@pytest.mark.parametrize("name", ["run.json", "state.safetensors"])
def test_a_broken_file_is_named(name, tmp_path):
    training.train(goal(), blobs(), Recipe(epochs=1), path=tmp_path)
    (tmp_path / name).write_bytes(b"broken")
    with pytest.raises(ValueError, match=f"`path`: .*{name}"):
        training.train(goal(), blobs(), Recipe(epochs=2), path=tmp_path, resume=True)


def test_wrong_paths_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`path` holds no run"):
        training.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        training.train(goal(), blobs(), Recipe(epochs=1), path=tmp_path / "file")


def test_a_diverged_run_is_stored_with_its_last_good_parameters(tmp_path):
    recipe = Recipe(training.SGD(1e6), epochs=50)
    run = training.train(Objective(TwoLayer(2, 0, 3), "mse"), training.Data(blobs().x, np.eye(3)[blobs().y]), recipe,
                         path=tmp_path, check=False)  # fmt: skip
    read = training.load(tmp_path)
    assert read.ending is run.ending is Ending.DIVERGED
    assert np.isfinite(read.theta).all()
    assert read.theta.tobytes() == run.theta.tobytes()
    assert read.message == run.message
