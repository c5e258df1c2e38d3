"""Figures of networks have the documented parts, in the right places and colours."""

from __future__ import annotations

import data
import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

import stepnet as sn
from stepnet import plots, training
from stepnet.estimators import NetClassifier

RANDOM = np.random.default_rng(0)
X, LABELS = RANDOM.normal(size=(40, 2)), np.arange(40) % 3
WIDE = sn.nets.hamiltonian(2, 3, 6, 8, workers=1)
PLANE = sn.nets.resnet(2, 3, 2, 4, opening="augment", workers=1)


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def places(axes) -> np.ndarray:
    (dots,) = [each for each in axes.collections if len(each.get_offsets()) > 1]
    return np.asarray(dots.get_offsets())


def places_of(axes) -> np.ndarray:
    """The same where there may be one point alone."""
    return np.asarray(axes.collections[-1].get_offsets())


@pytest.mark.parametrize(("depths", "titles"), [
    (3, ["start", "step 4", "step 8"]), ([0, 1, -1], ["start", "step 1", "step 8"]), (1, ["start"]),
    (99, ["start", *(f"step {k}" for k in range(1, 9))]),
])  # fmt: skip
def test_a_panel_for_each_depth(depths, titles):
    axes = plots.layers(WIDE, X, LABELS, depths=depths)
    assert [each.get_title() for each in axes] == titles
    assert all(each.get_aspect() == 1.0 for each in axes)
    assert all(places(each).shape == (40, 2) for each in axes)


def test_two_features_are_shown_as_they_are():
    for axes, state in zip(plots.layers(PLANE, X, LABELS, depths=range(5)), PLANE.features(X), strict=True):
        np.testing.assert_array_equal(places(axes), state)
    chosen = plots.layers(WIDE, X, depths=[2], components=(4, 1))
    np.testing.assert_array_equal(places(chosen[0]), WIDE.features(X)[2][:, [4, 1]])


def test_more_features_are_projected_on_the_plane_of_largest_spread():
    """Distances do not grow, and the spread is that of the two largest singular values."""
    axes = plots.layers(WIDE, X, LABELS, depths=[3])
    state = WIDE.features(X)[3]
    place = places(axes[0])
    sizes = np.linalg.svd(state - state.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose(np.linalg.svd(place, compute_uv=False), sizes[:2], rtol=1e-10)
    wide, flat = (np.linalg.norm(each[:, None] - each, axis=2) for each in (state, place))
    assert (flat <= wide * (1 + 1e-12)).all()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 40])
def test_few_points_of_many_features_keep_their_spread(count):
    """Also where there are fewer points than features, or a single one."""
    place = places_of(plots.layers(WIDE, X[:count], depths=[3])[0])
    state = WIDE.features(X[:count])[3]
    sizes = np.linalg.svd(state - state.mean(axis=0), compute_uv=False)[:2]
    found = np.linalg.svd(place, compute_uv=False)[:2]
    np.testing.assert_allclose(found, sizes[: len(found)], rtol=1e-10, atol=1e-12)


def test_only_the_last_block_is_seen_through_the_outputs():
    """Blocks before it are shown in the plane of largest spread at every depth."""
    net = sn.nets.parabolic_cnn((4, 4), (2, 4), 2, outputs=3, workers=1)
    images = RANDOM.normal(size=(20, 16))
    place = places(plots.layers(net, images, depths=[-1], block=0)[0])
    state = net.features(images, 0)[-1]
    sizes = np.linalg.svd(state - state.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose(np.linalg.svd(place, compute_uv=False), sizes[:2], rtol=1e-10)


def test_the_last_depth_shows_what_a_read_out_of_two_classes_sees():
    """The difference of two outputs is a linear function of the place alone."""
    net = sn.nets.antisymmetric(2, 2, 5, 4, workers=1)
    place = places(plots.layers(net, X, depths=[-1])[0])
    score = np.diff(net(X), axis=1)
    fit = np.hstack((place, np.ones((40, 1))))
    rest = score - fit @ np.linalg.lstsq(fit, score)[0]
    outputs = net(X) - net(X).mean(axis=0)
    assert np.abs(rest).max() < 0.1 * np.abs(outputs).max()


def test_inputs_in_a_plane_keep_their_orientation():
    net = sn.nets.hamiltonian(2, 2, 6, 3, opening="augment", workers=1)
    place = places(plots.layers(net, X, LABELS, depths=[0])[0])
    np.testing.assert_allclose(place, X - X.mean(axis=0), atol=1e-12)


def test_labels_are_colours():
    (axes,) = plots.layers(PLANE, X, np.array(["b", "a"])[LABELS % 2], depths=1)
    colours = axes.collections[0].get_facecolor()[:, :3]
    np.testing.assert_allclose(colours[0], to_rgb(plots.CLASSES[1]))
    np.testing.assert_allclose(colours[1], to_rgb(plots.CLASSES[0]))
    (axes,) = plots.layers(PLANE, X, X[:, 0], depths=1)
    np.testing.assert_array_equal(axes.collections[0].get_array(), X[:, 0])
    assert len(set(plots.CLASSES)) == 10


def test_edges_join_points():
    axes = plots.layers(PLANE, X, LABELS, depths=2, edges=[[0, 1], [2, 3], [4, 5]])
    assert [len(each.collections[0].get_segments()) for each in axes] == [3, 3]


def test_estimators_are_shown_like_nets():
    found = NetClassifier(width=6, steps=3, epochs=1, random_state=0).fit(X, LABELS)
    axes = plots.layers(found, X, LABELS, depths=2)
    scaled = plots.layers(found.net_, (X - found.shift_) * found.factor_, LABELS, depths=2)
    for one, other in zip(axes, scaled, strict=True):
        distances = [np.linalg.norm(each[:, None] - each, axis=2) for each in (places(one), places(other))]
        np.testing.assert_allclose(*distances, atol=1e-12)


def test_axes_of_ones_own():
    panels = Figure().subplots(1, 2)
    assert list(plots.layers(PLANE, X, depths=2, axes=panels)) == list(panels)


def test_regions_are_those_of_the_classifier():
    def right_half(points):
        return np.where(points[:, 0] > 0, "yes", "no")

    points = np.array([[-1.0, -2.0], [1.0, 2.0], [0.5, 0.0]])
    axes = plots.regions(right_half, points, ["no", "yes", "yes"], resolution=50)
    image = axes.images[0].get_array()
    assert image.shape == (50, 50)
    assert np.array_equal(image[0], np.repeat([0, 1], 25))
    assert len(places(axes)) == 3
    assert axes.get_xlim()[0] < -1 < 1 < axes.get_xlim()[1]
    same = plots.regions(
        lambda z: np.stack((-z[:, 0], z[:, 0]), 1), points, [0, 1, 1], Figure().subplots(), resolution=50
    )
    assert np.array_equal(same.images[0].get_array(), image)
    net = plots.regions(PLANE, X, LABELS, Figure().subplots(), resolution=20)
    assert net.images[0].get_array().max() <= 2


def shown(axes) -> np.ndarray:
    """Colours (rows, columns, 3) of the regions that are drawn."""
    image = axes.images[0]
    return image.to_rgba(image.get_array())[..., :3]


def thirds(points) -> np.ndarray:
    """Classes 0, 1 and 2 from left to right."""
    return np.digitize(points[:, 0], [-0.5, 0.5])


@pytest.mark.parametrize("seen", [[0, 1, 2], [0, 2], [2], [1]])
@pytest.mark.parametrize("predict", [thirds, lambda points: np.eye(3)[thirds(points)]])
def test_a_class_without_samples_keeps_its_region_and_all_keep_their_colours(predict, seen):
    x = np.stack((np.linspace(-1, 1, 60), np.linspace(-1, 1, 60)), axis=1)
    whole = plots.regions(predict, x, thirds(x), Figure().subplots(), resolution=40)
    some = np.isin(thirds(x), seen)
    places_of_some = np.concatenate((x[some], x[[0, -1]]))  # the corners keep the window as it is
    labels = np.concatenate((thirds(x)[some], np.repeat(seen[:1], 2)))
    part = plots.regions(predict, places_of_some, labels, Figure().subplots(), resolution=40)
    np.testing.assert_array_equal(shown(part), shown(whole))
    dots = part.collections[0].get_facecolor()[:-2, :3]
    np.testing.assert_allclose(dots, [to_rgb(plots.CLASSES[k]) for k in labels[:-2]])


def test_names_of_classes_have_the_order_that_is_given():
    names = np.array(["low", "middle", "high"])
    x = np.stack((np.linspace(-1, 1, 60), np.linspace(-1, 1, 60)), axis=1)
    axes = plots.regions(lambda points: names[thirds(points)], x, names[thirds(x)], classes=names, resolution=40)
    numbered = plots.regions(thirds, x, thirds(x), Figure().subplots(), resolution=40)
    np.testing.assert_array_equal(shown(axes), shown(numbered))
    np.testing.assert_array_equal(axes.collections[0].get_facecolor(), numbered.collections[0].get_facecolor())


def test_an_estimator_knows_its_classes():
    names = np.array(["a", "b", "c"])[LABELS]
    found = NetClassifier(width=6, steps=3, epochs=1, random_state=0).fit(X, names)
    axes = plots.regions(found.predict, X[names != "b"], names[names != "b"], resolution=20)
    assert set(map(tuple, axes.collections[0].get_facecolor()[:, :3])) == {to_rgb(plots.CLASSES[k]) for k in (0, 2)}
    (axes,) = plots.layers(found, X[names != "a"], names[names != "a"], depths=1)
    assert set(map(tuple, axes.collections[0].get_facecolor()[:, :3])) == {to_rgb(plots.CLASSES[k]) for k in (1, 2)}


def test_points_keep_their_colours_when_a_class_is_left_out():
    whole, part = (
        plots.layers(PLANE, X[chosen], LABELS[chosen], depths=1)[0].collections[0].get_facecolor()
        for chosen in (np.arange(40), LABELS != 0)
    )
    np.testing.assert_array_equal(part, whole[LABELS != 0])
    ring = np.roll(np.eye(6), 1, axis=1) + np.roll(np.eye(6), -1, axis=1)
    axes = plots.graph(ring, np.array([1, 2] * 3), Figure().subplots())
    np.testing.assert_allclose(axes.collections[1].get_facecolor()[0, :3], to_rgb(plots.CLASSES[1]))


def test_more_than_ten_classes_have_colours_of_their_own():
    (axes,) = plots.layers(PLANE, X, np.arange(40) % 20, depths=1)
    assert len({tuple(colour) for colour in axes.collections[0].get_facecolor()}) == 20


def test_a_legend_names_classes_in_their_colours():
    legend = plots.class_legend(Figure(), ["no", "yes"])
    assert [text.get_text() for text in legend.get_texts()] == ["no", "yes"]
    assert [to_rgb(dot.get_color()) for dot in legend.legend_handles] == [to_rgb(each) for each in plots.CLASSES[:2]]


def test_histories_of_every_kind():
    train, test = data.moons(60, 40)
    objective = training.Objective(sn.nets.resnet(2, 2, 4, 2, workers=1), "cross_entropy")
    run = training.train(objective, train, training.Recipe("adam", epochs=5, batch_size=20), validation=test)
    axes = plots.history(run, Figure().subplots())
    assert [line.get_label() for line in axes.lines] == ["training", "validation"]
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), run.history["validation_loss"])
    assert (axes.get_yscale(), axes.get_xlabel()) == ("log", "epoch")
    one = training.minimise(objective, train, training.LBFGS(7))
    axes = plots.history(one, Figure().subplots())
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), one.history)
    _, minima = training.multilevel(objective, train, training.LBFGS(4), levels=3)
    axes = plots.history(minima, Figure().subplots())
    assert len(axes.lines) == 3  # two borders and the curve
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["net refined", "training"]
    assert len(axes.lines[-1].get_ydata()) == sum(len(each.history) for each in minima)


def test_losses_below_zero_have_an_even_scale():
    points = training.Data(X, RANDOM.normal(scale=1e-3, size=40)[:, None])
    objective = training.Objective(sn.nets.resnet(2, 2, 4, 2, workers=1), "gaussian_nll")
    found = training.minimise(objective, points, training.LBFGS(60))
    assert found.value < 0
    assert plots.history(found, Figure().subplots()).get_yscale() == "linear"


def test_a_path_lies_on_a_line_and_neighbours_a_unit_apart():
    """A path can be drawn without any stress: all distances are those along it."""
    n = 7
    path = np.diag(np.ones(n - 1), 1)
    place = plots.graph_positions(path + path.T)
    distance = np.linalg.norm(place[:, None] - place, axis=2)
    np.testing.assert_allclose(distance, np.abs(np.subtract.outer(np.arange(n), np.arange(n))), atol=1e-3)
    axes = plots.graph(path + path.T, np.arange(n) % 2, Figure().subplots())
    assert len(axes.collections[0].get_segments()) == n - 1
    assert len(axes.collections[1].get_offsets()) == n


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.layers(WIDE, X, depths=0), "`depths` must be at least 1, found 0"),
        (lambda: plots.layers(WIDE, X, depths=[3, 9]), "`depths` must be numbers of the states 0 to 8"),
        (lambda: plots.layers(WIDE, X, LABELS[:5]), "`labels` must be one for each of 40 points"),
        (lambda: plots.layers(WIDE, X, axes=Figure().subplots(1, 2)), "`axes` must be one for each of 5 depths"),
        (lambda: plots.regions(WIDE, np.ones((4, 3)), [0, 1, 0, 1]), "`x` must be points in a plane"),
        (
            lambda: plots.regions(WIDE, X, np.array(["a", "b"])[LABELS % 2]),
            "`classes` must be one for each of 3 outputs",
        ),
        (lambda: plots.regions(WIDE, X, LABELS, classes=["a", "b", "c"]), "`classes` must have all of `labels`"),
        (lambda: plots.layers(WIDE, X, LABELS, classes=[0, 1]), r"`classes` must have all of `labels`.*without .*2"),
        (lambda: plots.graph(np.eye(3)), "connected graph"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
