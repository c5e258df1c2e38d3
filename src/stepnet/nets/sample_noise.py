"""Which Brownian paths the samples of a batch use in a net with diffusion.

The path of a sample is a function of its key and a path number, not of its place in the batch, so its outputs do not
depend on the other samples.  The default key is a hash of the sample's numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from stepnet.noise.counters import HALF_GROUP, MOST_CELLS, MOST_PATHS
from stepnet.records import as_array, keep, validate_count, validate_seed
from stepnet.validation import array, check, whole

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: seeds of consecutive blocks
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # of the finaliser of SplitMix64
ONE, SECOND_OF_PAIR = np.uint64(1), np.uint64(HALF_GROUP)  # the bit that tells apart two paths of one draw
PATH_SHIFT = np.uint64(64 - (MOST_PATHS - 1).bit_length())


@dataclass(frozen=True, eq=False)
class SampleNoise:
    """A seed, and the Brownian path of each sample; every block has independent noise.

    Parameters
    ----------
    seed : int
        From 0 to 2^64 - 1.
    keys : array_like of int (batch,), optional
        One key for each sample; samples with the same key use the same path.  By default a hash of each sample.
    path : int or array_like of int (batch,)
        Which of the paths of its key a sample uses.
    cells : int, optional
        Cells of the base grid of every block, a multiple of its steps: nets with fewer steps use the same paths.  By
        default the number of steps.

    Examples
    --------
    >>> from stepnet.nets import SampleNoise
    >>> import numpy as np
    >>> paths = SampleNoise(seed=1).find_paths(np.array([[0.5, 1.0], [2.0, 3.0]]))
    >>> bool(paths[1] == SampleNoise(seed=1).find_paths(np.array([[2.0, 3.0]]))[0])
    True
    """

    seed: int = 0
    keys: ArrayLike | None = None
    path: int | ArrayLike = 0
    cells: int | None = None

    def __post_init__(self) -> None:
        keep(self, seed=validate_seed(self.seed), path=_validate_numbers("path", self.path))
        if self.keys is not None:
            keep(self, keys=_validate_numbers("keys", self.keys))
        if self.cells is not None:
            keep(self, cells=validate_count("cells", self.cells, 1, MOST_CELLS))

    @check(x=array(None, None))
    def find_paths(self, x: np.ndarray) -> np.ndarray:
        """The number of the path of each row of a batch `(batch, features)`."""
        keys = hash_samples(x) if self.keys is None else np.asarray(self.keys).astype(np.uint64)
        for name, values in (("keys", keys), ("path", np.asarray(self.path))):
            if values.shape not in ((), (len(x),)):
                raise ValueError(f"`{name}` must be one number for each of {len(x)} samples, found {values.shape}")
        path = np.atleast_1d(self.path).astype(np.uint64)
        mixed = _mix(np.atleast_1d(keys) ^ _mix(path >> ONE)) >> PATH_SHIFT
        numbers = (mixed & ~SECOND_OF_PAIR) | (path & ONE) * SECOND_OF_PAIR
        return np.broadcast_to(numbers, (len(x),)).astype(np.int64)

    @check(block=whole())
    def find_seed(self, block: int) -> int:
        """The seed of a block."""
        return (self.seed + block * GOLDEN) % 2**64

    @check(steps=whole(1))
    def find_cells(self, steps: int) -> int:
        """The cells of the base grid of a block with this number of steps."""
        if self.cells is None:
            return steps
        if self.cells % steps:
            raise ValueError(f"`cells` must be a multiple of the {steps} steps of a block, found {self.cells}")
        return self.cells


def validate_noise(noise: SampleNoise | None) -> SampleNoise | None:
    """Return the noise of samples, or None for the default."""
    if noise is not None and not isinstance(noise, SampleNoise):
        raise TypeError(f"`noise` must be a SampleNoise, found {type(noise).__name__}")
    return noise


def repeat_noise(noise: SampleNoise, samples: int, paths: int) -> SampleNoise:
    """The noise of a batch with `paths` neighbouring copies of each sample: copy k sees the path `path * paths + k`."""
    if paths == 1:
        return noise
    path = np.repeat(np.broadcast_to(noise.path, samples) * paths, paths) + np.tile(np.arange(paths), samples)
    keys = None if noise.keys is None else np.repeat(np.broadcast_to(noise.keys, samples), paths)
    return replace(noise, keys=keys, path=path)


def _validate_numbers(name: str, value: ArrayLike) -> np.ndarray:
    """Return one integer or a row of them, not negative."""
    found = as_array(name, value)
    if found.dtype.kind not in "iu" or found.ndim > 1:
        raise TypeError(f"`{name}` must be one integer, or one for each sample, found {found.dtype} {found.shape}")
    if found.size and found.min() < 0:
        raise ValueError(f"`{name}` must not be negative, found {found.min()}")
    return found


def _mix(words: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit integers in which every bit depends on all bits (Steele et al. 2014, SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * FACTORS[0]
    words = (words ^ (words >> np.uint64(27))) * FACTORS[1]
    return words ^ (words >> np.uint64(31))


def hash_samples(x: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each row of a batch; 0 and -0 count as equal."""
    rows = np.ascontiguousarray(x + 0.0)
    bits = rows.view(np.uint64 if rows.itemsize == 8 else np.uint32).astype(np.uint64)
    columns = _mix(np.arange(1, bits.shape[1] + 1, dtype=np.uint64))
    return _mix(_mix(bits ^ columns).sum(axis=1, dtype=np.uint64))
