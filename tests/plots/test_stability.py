"""Figures of stability show the correct regions."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
from matplotlib.figure import Figure

from stepnet import plots


def test_the_contour_of_euler_is_its_circle():
    axes = plots.stability_region("euler", axes=Figure().subplots())
    outlines = [each for each in axes.collections if len(each.get_edgecolor()) and not len(each.get_facecolor())]
    points = np.concatenate([path.vertices for each in outlines for path in each.get_paths()])
    np.testing.assert_allclose(np.hypot(points[:, 0] + 1, points[:, 1]), 1, atol=1e-3)  # linear interpolation
    assert axes.get_aspect() == 1.0


def test_every_scheme_has_its_name_and_the_window_holds_all():
    names = ["euler", "rk4", "dopri5", "ab3", "midpoint_two_step", "rkc2", "verlet"]
    axes = plots.stability_region(*names, axes=Figure().subplots())
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["euler", "rk4", "dopri5", "ab3", "midpoint_two_step", "rkc2(10)", "verlet (h omega)"]
    assert axes.get_xlim()[0] < -64
    assert axes.get_ylim()[1] > 7


def test_bars_and_lines_end_at_the_limits():
    axes = plots.stability_region("verlet", "midpoint_two_step", axes=Figure().subplots())
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_allclose(np.max(lines["verlet (h omega)"].get_ydata()), 2, atol=1e-6)
    np.testing.assert_allclose(np.max(lines["midpoint_two_step"].get_ydata()), 1, atol=1e-4)  # 720 angles


def test_reach_is_the_window():
    axes = plots.stability_region("rk4", axes=Figure().subplots(), reach=4.0)
    assert axes.get_xlim() == (-4.0, 4.0)
    assert plots.order_star("rk4", Figure().subplots(), reach=3.0).get_ylim() == (-3.0, 3.0)


def test_mean_square_regions_are_drawn_with_the_exact_one():
    axes = plots.mean_square_stability("euler_maruyama", "stochastic_heun", axes=Figure().subplots())
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["euler_maruyama", "stochastic_heun", "exact, ito", "exact, stratonovich"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.stability_region(), "`schemes` must hold at least 1"),
        (lambda: plots.stability_region("rk4", 3), r"`schemes\[1\]` must be a scheme"),
        (lambda: plots.order_star("verlet"), "`scheme` must be one for y'"),
        (lambda: plots.stability_region("rk4", axes=3), "`axes` must be axes"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_probabilities_and_widths_of_their_intervals_stand_side_by_side():
    def predict(points):
        p = np.stack((points[:, 0] < 0, points[:, 0] >= 0), axis=1).astype(float)
        return p, 0.5 * p, p

    pair = Figure().subplots(1, 2)
    assert list(plots.probabilities(predict, np.eye(2), [0, 1], pair, resolution=5)) == list(pair)
    assert [len(axes.figure.axes) for axes in pair] == [4, 4]  # with two scales
    with pytest.raises(TypeError, match="`axes` must be axes of matplotlib"):
        plots.probabilities(predict, np.eye(2), axes="left")
