"""Figures agree with the stored images, which were inspected; `python tests/plots/figures.py` stores new ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
from matplotlib.image import imread
from plots.figures import FIGURES, render

BASELINE = Path(__file__).parent / "baseline"
RMS = 6.0  # of 255: lines that move by a pixel, other hinting of letters; different figures are 20 apart


def read(name: str) -> np.ndarray:
    return 255.0 * imread(BASELINE / f"{name}.png")[..., :3]


def difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.sqrt(np.mean((one - other) ** 2)))


@pytest.mark.parametrize("name", FIGURES)
def test_figures_look_as_before(name):
    assert difference(render(name), read(name)) < RMS


def test_the_comparison_tells_figures_apart():
    names = list(FIGURES)
    for one, other in pairwise(names):
        if read(one).shape == read(other).shape:
            assert difference(read(one), read(other)) > 2 * RMS


def test_every_baseline_belongs_to_a_figure():
    assert {path.stem for path in BASELINE.glob("*.png")} == set(FIGURES)
    assert sum(path.stat().st_size for path in BASELINE.glob("*.png")) < 200_000


def test_colours_of_lines_are_safe_for_colour_blind_readers():
    """Each pair of the first five differs in a deuteranope's and a protanope's view; Vienot et al. (1999)."""
    from matplotlib.colors import to_rgb

    from stepnet.plots import COLOURS

    rgb = np.array([to_rgb(each) for each in COLOURS[:5]]) ** 2.2
    to_lms = np.array([[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]])
    deuteranope = np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]])
    protanope = np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]])
    for missing in (deuteranope, protanope):
        seen = np.clip(rgb @ (np.linalg.inv(to_lms) @ missing @ to_lms).T, 0, 1) ** (1 / 2.2)
        distances = np.linalg.norm(seen[:, None] - seen, axis=-1)[np.triu_indices(5, 1)]
        assert distances.min() > 0.15  # black and white are 1.7 apart
