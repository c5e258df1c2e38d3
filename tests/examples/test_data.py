"""The data sets of the examples are what their names promise."""

from __future__ import annotations

import data
import networkx
import numpy as np
import pytest

DRAWN = {"ellipses": data.ellipses, "peaks": data.peaks, "moons": data.moons, "digits": data.digits}


@pytest.mark.parametrize("name", DRAWN)
def test_a_seed_gives_the_same_points_and_another_one_others(name):
    one, same, other = (DRAWN[name](seed=seed) for seed in (3, 3, 4))
    for part in (0, 1):
        assert np.array_equal(one[part].x, same[part].x)
        assert np.array_equal(one[part].y, same[part].y)
        assert not np.array_equal(one[part].x, other[part].x)


@pytest.mark.parametrize("name", [*DRAWN, "swiss_roll", "mnist"])
def test_no_sample_to_test_on_was_learnt(name):
    learnt, tested = getattr(data, name)()
    assert {row.tobytes() for row in learnt.x}.isdisjoint(row.tobytes() for row in tested.x)
    assert np.array_equal(np.unique(learnt.y), np.unique(tested.y))


def test_ellipses_have_an_inside_and_an_outside():
    for part, count in zip(data.ellipses(), (1000, 200), strict=True):
        radius = np.hypot(part.x[:, 0], part.x[:, 1] / 0.4)
        assert np.array_equal(part.y, radius > 1)
        assert np.array_equal(np.bincount(part.y), [count, count])
        assert radius.max() < 2


def test_spirals_make_two_turns_at_a_distance():
    learnt, tested = data.swiss_roll()
    assert (len(learnt), len(tested)) == (514, 512)
    points = np.concatenate((learnt.x[learnt.y == 1], tested.x[tested.y == 1]))
    radius = np.sort(np.linalg.norm(points, axis=1))
    np.testing.assert_allclose(radius, np.linspace(0.2, 1.2, 513), atol=1e-12)
    order = np.argsort(np.linalg.norm(points, axis=1))
    turned = np.unwrap(np.arctan2(*points[order].T[::-1]))
    np.testing.assert_allclose(turned, np.linspace(0, 4 * np.pi, 513), atol=1e-12)


def test_peaks_are_bands_of_equal_height():
    learnt, tested = data.peaks(train=200, test=40)
    for part, count in ((learnt, 200), (tested, 40)):
        assert np.array_equal(np.bincount(part.y), np.full(5, count))
    line = np.linspace(-3, 3, 256)
    surface = data.peaks_surface(line[:, None], line)
    low, high = surface.min(), surface.max()
    band = np.floor(5 * (data.peaks_surface(*learnt.x.T) - low) / (high - low))
    assert np.array_equal(np.minimum(band, 4), learnt.y)
    with pytest.raises(ValueError, match="`train` \\+ `test` must be at most 1798, found 1800"):
        data.peaks(train=1700, test=100)


def test_images_are_all_there():
    for name, count, pixels in (("digits", 1797, 64), ("mnist", 5000, 784)):
        learnt, tested = getattr(data, name)()
        assert len(learnt) + len(tested) == count
        assert learnt.x.shape[1] == pixels
        assert (learnt.x.min(), learnt.x.max()) == (0, 1)


def test_communities_are_joined_as_often_as_told():
    adjacency, labels = data.block_model((200, 300), within=0.1, between=0.02, seed=1)
    assert np.array_equal(adjacency, adjacency.T)
    assert not adjacency.diagonal().any()
    same = labels[:, None] == labels
    for chance, pairs in ((0.1, same & ~np.eye(500, dtype=bool)), (0.02, ~same)):
        deviation = np.sqrt(chance * (1 - chance) / (pairs.sum() / 2))
        assert abs(adjacency[pairs].mean() - chance) < 4 * deviation


def test_the_club_is_that_of_another_source():
    adjacency, labels = data.karate_club()
    assert (len(adjacency), adjacency.sum()) == (34, 2 * 78)
    graph = networkx.karate_club_graph()
    assert np.array_equal(adjacency, networkx.to_numpy_array(graph, weight=None))
    assert np.array_equal(labels, [graph.nodes[node]["club"] == "Officer" for node in graph])
