"""Words, uniforms, normals and discrete variables: known answers and statistics."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import stats

from stepnet.noise import discrete, three_point, two_point
from stepnet.noise.counters import CELL_INCREMENT, locate_in_pair
from stepnet.noise.grid import NoiseGrid
from stepnet.noise.normals import LARGEST_NORMAL, convert_to_normals
from stepnet.noise.philox import convert_to_uniforms, draw_words
from stepnet.noise.reference import BrownianPaths, draw_shared_normals

N = 200_000
LEAST_P = 1e-4  # of tests on numbers that never change
STANDARD_ERRORS = 4.5
ULPS_OF_NORMALS = 4.0  # of the larger of the pair

# Random123 1.09, tests/kat_vectors: counter, key, words of philox4x32 10
ALL = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((ALL, ALL, ALL, ALL), 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.fixture(scope="module")
def words():
    return draw_words((0, 1, np.arange(N // 2), 2), 3)


@pytest.fixture(scope="module")
def normals(words):
    return np.concatenate(convert_to_normals(words))


def draw(seed: int, paths, cells, dimension: int = 1) -> np.ndarray:
    noise = BrownianPaths(NoiseGrid((0.0, 1.0), 2**20), seed, np.asarray(paths), dimension)
    return draw_shared_normals(noise, CELL_INCREMENT, np.asarray(cells))


@pytest.mark.parametrize(("counter", "key", "wanted"), KNOWN)
def test_words_are_the_known_answers(counter, key, wanted):
    assert " ".join(f"{int(word):08x}" for word in draw_words(counter, key)) == wanted


def test_uniforms_are_uniform_and_open(words):
    u = np.concatenate(convert_to_uniforms(words))
    counts = np.bincount((u * 1000).astype(int), minlength=1000)
    assert stats.chisquare(counts).pvalue > LEAST_P
    extremes = convert_to_uniforms(tuple(np.array([0, ALL], np.uint64) for _ in range(4)))[0]
    assert extremes.tolist() == [2.0**-53, 1 - 2.0**-53]


def test_pairs_of_uniforms_fill_the_square(words):
    u, v = convert_to_uniforms(words)
    counts = np.histogram2d(u, v, bins=30, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(counts.ravel()).pvalue > LEAST_P


def test_normals_have_the_moments_of_the_normal_law(normals):
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (5, 0), (6, 15), (8, 105)):
        values = normals**power
        assert abs(values.mean() - moment) < STANDARD_ERRORS * values.std() / np.sqrt(len(values))


def test_normals_pass_the_test_of_kolmogorov_and_smirnov(normals):
    assert stats.kstest(normals, "norm").pvalue > LEAST_P
    assert stats.kstest(normals**2, "chi2", args=(1,)).pvalue > LEAST_P


def test_both_normals_of_a_draw_are_independent(normals):
    x, y = np.split(normals, 2)
    assert stats.kstest(np.arctan2(x, y), "uniform", args=(-np.pi, 2 * np.pi)).pvalue > LEAST_P
    for f in (np.abs, np.square, np.sign):
        assert stats.pearsonr(f(x), f(y)).pvalue > LEAST_P


def test_normals_are_those_of_box_and_muller():
    """Exact logarithms, sines and cosines of the same uniforms, extremes among them."""
    special = np.array([[0, 0, 0, 0], [ALL] * 4, [ALL, ALL, 0, 0], [0, 0, 1 << 30, 0]], np.uint64).T
    words = tuple(
        np.concatenate((a, b)) for a, b in zip(draw_words((0, 0, np.arange(200), 0), 1), special, strict=True)
    )
    found = np.stack(convert_to_normals(words))
    assert np.abs(found).max() < LARGEST_NORMAL
    for i, (a, b, c, d) in enumerate(zip(*(map(int, each) for each in words), strict=True)):
        u = mpmath.mpf(2 * ((a << 20) | (b >> 12)) + 1) / 2**53
        q = mpmath.mpf(((c & 0x3FFFFFFF) << 22) | (d >> 10) | 1) / 2**54 - mpmath.mpf(1) / 8
        r = mpmath.sqrt(-2 * mpmath.log(u))
        pair = [r * mpmath.cos(2 * mpmath.pi * q) * (-1) ** (c >> 31), r * mpmath.sin(2 * mpmath.pi * q)]
        wanted = np.array(pair[::-1] if (c >> 30) & 1 else pair, float)
        assert np.abs(found[:, i] - wanted).max() <= ULPS_OF_NORMALS * np.spacing(np.abs(wanted).max())


def test_paths_steps_components_and_seeds_are_uncorrelated():
    z = draw(5, range(64), range(600), 2).reshape(600, 128)  # steps, (path, component)
    other = draw(6, range(64), range(600), 2).reshape(600, 128)
    n = len(z)
    for matrix in (
        np.corrcoef(z.T)[np.triu_indices(128, 1)],
        (z.T @ other / n).ravel(),
        (z[:-1].T @ z[1:] / n).ravel(),
    ):
        assert stats.kstest(matrix * np.sqrt(n), "norm").pvalue > LEAST_P
        assert np.abs(matrix).max() * np.sqrt(n) < 5.5


def test_no_two_paths_share_a_number():
    z = draw(5, range(2000), range(3), 3)
    assert len(np.unique(z)) == z.size
    pair, half = locate_in_pair(np.arange(2000))
    assert len(set(zip(pair.tolist(), half.tolist(), strict=True))) == 2000


@pytest.mark.parametrize(
    ("draw_values", "values", "probabilities"),
    [(two_point, [-1, 1], [0.5, 0.5]), (three_point, [-discrete.ROOT_3, 0, discrete.ROOT_3], [1 / 6, 2 / 3, 1 / 6])],
)
def test_discrete_variables_have_their_law(draw_values, values, probabilities):
    found = draw_values(7, range(400), range(100), 2)
    assert found.shape == (100, 400, 2)
    counts = [(found == value).sum() for value in values]
    assert sum(counts) == found.size
    assert stats.chisquare(counts, np.array(probabilities) * found.size).pvalue > LEAST_P
    flat = found.reshape(100, -1)
    correlations = np.array([np.mean(flat[:, i] * flat[:, i + 1]) for i in range(flat.shape[1] - 1)]) * 10.0
    assert stats.kstest(correlations, "norm").statistic < 0.1  # sums of 100 products are not quite normal


def test_discrete_variables_depend_on_path_step_and_component_alone():
    whole = three_point(7, range(50), range(20), 3)
    assert (three_point(7, [33, 2], [11, 4], 2) == whole[[11, 4]][:, [33, 2]][:, :, :2]).all()
    assert three_point(7, 33, 11, 3).tolist() == whole[11, 33].tolist()
    assert (two_point(7, range(50), 1) != two_point(8, range(50), 1)).any()
