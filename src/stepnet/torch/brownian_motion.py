"""Brownian motions on tensors with torchsde's signatures: functions of (entropy, path, interval) that store nothing."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepnet import validation as checks
from stepnet.engines.torch_engine import TensorNoise, approximate_levy_area, evaluate_between, locate, quantise
from stepnet.noise import NoiseGrid
from stepnet.noise.arguments import check_seed, validate_paths
from stepnet.noise.counters import MOST_COMPONENTS, MOST_PATHS
from stepnet.noise.grid import DEFAULT_LEVELS
from stepnet.records import explain_arguments, explain_passed_arguments

AREAS = ("none", "space-time", "davie", "foster")
"""Approximations of Levy areas, by torchsde's names."""
MOST_SEED = 2**62


def draw_seed(y: Tensor) -> int | Tensor:
    """A seed from the generator of torch: a number, or a tensor where numbers cannot be read without waiting."""
    if type(y) in (Tensor, torch.nn.Parameter) and y.device.type == "cpu" and not torch.compiler.is_compiling():
        return int(torch.randint(MOST_SEED, ()))
    return torch.randint(MOST_SEED, (), device=y.device)


def _validate_time(name: str, value: Any) -> float:
    """A time: a number, or a tensor with one."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ValueError(f"`{name}` must be one time, found a tensor {tuple(value.shape)} of {value.dtype}")
        value = value.detach().item()
    return checks.real()(name, value)


@checks.check(
    t0=_validate_time, t1=_validate_time, entropy=checks.optional(check_seed), dt=checks.optional(_validate_time),
    tol=checks.real("[0, inf)"), pool_size=checks.whole(1), cache_size=checks.optional(checks.whole(0)),
    halfway_tree=checks.validate_flag, levy_area_approximation=checks.one_of(*AREAS),
    cells=checks.optional(checks.whole(1)), levels=checks.whole(0, 31),
)  # fmt: skip
class BrownianInterval:
    """A Brownian motion on [t0, t1] for every sample of a batch, with random access: `bm(ta, tb)` is W(tb) - W(ta).

    The increments are a function of `entropy`, the number of the path, the interval and the grid, independent of the
    order of the calls; they are those of `stepnet.noise.BrownianPath`.  Nothing is stored, so that `tol`, `pool_size`,
    `cache_size` and `halfway_tree`, by which torchsde's class trades memory for time, have no effect.

    Parameters
    ----------
    t0, t1 : float or tensor
        The interval, t0 < t1.
    size : tuple of int, optional
        The shape of an increment: (batch, ..., components); (batch,) has one component, () one number.  By default that
        of `W` or `H`.
    dtype : torch.dtype, optional
        The dtype of the increments, by default that of `W` or `H`, or torch's default.  They are computed in float64.
    device : device, optional
        Where they are computed.
    entropy : int, optional
        The seed, by default a random one from torch's generator.
    dt : float, optional
        The step size of the expected queries: the interval is divided into about (t1 - t0) / dt cells.
    tol, pool_size, cache_size, halfway_tree
        Without effect.
    levy_area_approximation : {"none", "space-time", "davie", "foster"}
        Read by torchsde's solvers.  Here both areas are always available; "davie" has the mean variance of Levy areas,
        the others their conditional variance.
    W, H : tensor, optional
        The increment and the space-time Levy area of the whole interval, by default random.
    paths : int or sequence of int
        The number of the first sample's path, or those of all samples: a sample does not depend on its batch.
    cells : int, optional
        Cells of the base grid, instead of `dt`.
    levels : int
        Maximum number of halvings of a cell.

    Examples
    --------
    >>> import torch
    >>> from stepnet.torch import BrownianInterval
    >>> bm = BrownianInterval(0.0, 1.0, size=(4, 2), entropy=1, dtype=torch.float64)
    >>> bm(0.25, 0.5).shape
    torch.Size([4, 2])
    >>> W, U = bm(0.25, 0.5, return_U=True)
    """

    def __init__(
        self, t0: Any = 0.0, t1: Any = 1.0, size: Sequence[int] | None = None, dtype: torch.dtype | None = None,
        device: Any = None, entropy: int | None = None, dt: float | None = None, tol: float = 0.0, pool_size: int = 8,
        cache_size: int | None = 45, halfway_tree: bool = False, levy_area_approximation: str = "none",
        W: Tensor | None = None, H: Tensor | None = None, *, paths: Any = 0, cells: int | None = None,
        levels: int = DEFAULT_LEVELS,
    ) -> None:  # fmt: skip
        like = _find_example(W, H)
        self._shape = _validate_size(size, W, H)
        self._dtype = _validate_dtype(dtype, like)
        self._device = _validate_device(device, like)
        if cells is None:
            cells = _count_cells(t0, t1, dt) if W is None and H is None else 1
        elif cells > 1 and like is not None:
            raise ValueError(f"`cells` must be 1 with `W` or `H`, which belong to the whole interval, found {cells}")
        grid, inner = NoiseGrid((t0, t1), cells, levels), self._flat_shape
        entropy = int(torch.randint(MOST_SEED, (), device="cpu")) if entropy is None else entropy
        numbers = _number_paths(paths, inner[0], self._device)
        given = [None if x is None else x.detach().reshape(inner).double() for x in (W, H)]
        self._noise = TensorNoise(
            grid, entropy, numbers, inner[1], None if given[0] is None else quantise(given[0], grid), given[1]
        )
        self._levy_area_approximation = levy_area_approximation

    @property
    def _flat_shape(self) -> tuple[int, int]:
        """Paths and components."""
        return (self._shape[:-1].numel(), self._shape[-1]) if len(self._shape) > 1 else (self._shape.numel(), 1)

    def __call__(self, ta: Any, tb: Any = None, return_U: bool = False, return_A: bool = False) -> Any:
        """W(tb) - W(ta), or W(ta) - W(t0) for one time.

        Parameters
        ----------
        ta, tb : float or tensor
            The interval, ta <= tb; times outside by a few units in the last place are replaced by the ends.
        return_U : bool
            Return the integral of W - W(ta) over the interval too.
        return_A : bool
            Return the Levy area too, (*size, components).

        Returns
        -------
        tensor or tuple of tensors
            W, (W, U), (W, A) or (W, U, A).
        """
        checks.validate_flag("return_U", return_U), checks.validate_flag("return_A", return_A)
        a, b = _validate_time("ta", ta), None if tb is None else _validate_time("tb", tb)
        a, b = (self._noise.grid.t_span[0], a) if b is None else (a, b)
        if b < a:
            raise ValueError(f"`tb` must not be before `ta` = {a:g}, found {b:g}")
        start, end = locate(self._noise.grid, self._clip(a, b))
        W, H = evaluate_between(self._noise, start, end)
        found = [W.reshape(self._shape)]
        if return_U:
            found.append(((b - a) * (0.5 * W + H)).reshape(self._shape))
        if return_A:
            found.append(self._approximate_area(start, end, b - a, W, H))
        found = [x.to(self._dtype) for x in found]
        return found[0] if len(found) == 1 else tuple(found)

    def _clip(self, a: float, b: float) -> tuple[float, float]:
        """Times rounded to the dtype of the motion may be outside by its resolution."""
        t0, t1 = self._noise.grid.t_span
        slack = 4 * torch.finfo(self._dtype).eps * max(abs(t0), abs(t1))
        a, b = (t0 if t0 - slack <= t < t0 else t1 if t1 < t <= t1 + slack else t for t in (a, b))
        return a, b

    def _approximate_area(self, start: Any, end: Any, h: float, W: Tensor, H: Tensor) -> Tensor:
        if len(self._shape) < 2:
            return torch.zeros((*self._shape, *self._shape[-1:]), dtype=torch.float64, device=self._device)
        if start == end:
            A = torch.zeros((*W.shape, W.shape[-1]), dtype=torch.float64, device=self._device)
        else:
            A = approximate_levy_area(self._noise, start, end, h, W, H, self._levy_area_approximation != "davie")
        return A.reshape(*self._shape, self._shape[-1])

    def __repr__(self) -> str:
        t0, t1 = self._noise.grid.t_span
        return f"{type(self).__name__}(t0={t0:g}, t1={t1:g}, size={tuple(self._shape)}, entropy={self._noise.seed})"

    @property
    def noise(self) -> TensorNoise:
        """The paths as the engine evaluates them."""
        return self._noise

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of increments."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """The device of increments."""
        return self._device

    @property
    def shape(self) -> torch.Size:
        """The shape of an increment."""
        return self._shape

    @property
    def levy_area_approximation(self) -> str:
        """The approximation of Levy areas."""
        return self._levy_area_approximation

    def size(self) -> torch.Size:
        """The shape of an increment.

        Returns
        -------
        torch.Size
            As `shape`.
        """
        return self._shape


@explain_arguments(also=signature(BrownianInterval).parameters)
class BrownianPath(BrownianInterval):
    """A Brownian motion from w0 at t0: `bm(t)` is W(t), `bm(ta, tb)` the increment.

    Parameters
    ----------
    t0 : float or tensor
        The first time.
    w0 : tensor
        The value there, (batch, components), which also determines the size, dtype and device.
    window_size : int
        Without effect, as in torchsde.
    t1 : float or tensor, optional
        The last time, by default t0 + 1 as in torchsde.
    **more
        `entropy`, `dt`, `levy_area_approximation`, `paths`, `cells`, `levels` as in `BrownianInterval`.

    Examples
    --------
    >>> import torch
    >>> from stepnet.torch import BrownianPath
    >>> bm = BrownianPath(0.0, torch.zeros(4, 1), entropy=1)
    >>> bool((bm(0.5) == bm(0.0, 0.5)).all())
    True
    """

    def __init__(self, t0: Any, w0: Tensor, window_size: int = 8, *, t1: Any = None, **more: Any) -> None:
        checks.whole(1)("window_size", window_size)
        self._w0, t0 = _validate_value("w0", w0), _validate_time("t0", t0)
        super().__init__(t0, t0 + 1.0 if t1 is None else t1, w0.shape, w0.dtype, w0.device, **more)

    def __call__(self, t: Any, tb: Any = None, return_U: bool = False, return_A: bool = False) -> Any:
        """W(t), or the increment from t to tb, as in `BrownianInterval`.

        Parameters
        ----------
        t, tb : float or tensor
            A time, or an interval.
        return_U, return_A : bool
            As in `BrownianInterval`.

        Returns
        -------
        tensor or tuple of tensors
            W(t), W(tb) - W(t), or the latter with the requested areas.
        """
        found = super().__call__(t, tb, return_U, return_A)
        return found + self._w0 if tb is None and not (return_U or return_A) else found


class BrownianTree(BrownianPath):
    """As `BrownianPath`, with a given last time and, optionally, a given value there.

    Parameters
    ----------
    t0 : float or tensor
        The first time.
    w0 : tensor
        The value there, (batch, components).
    t1 : float or tensor, optional
        The last time, by default t0 + 1.
    w1 : tensor, optional
        The value there, by default random.
    entropy : int, optional
        The seed, by default a random one from torch's generator.
    tol : float
        Without effect, as are `pool_size`, `cache_depth` and `safety`.
    pool_size, cache_depth : int
        Without effect.
    safety : float, optional
        Without effect.

    Examples
    --------
    >>> import torch
    >>> from stepnet.torch import BrownianTree
    >>> bm = BrownianTree(0.0, torch.zeros(4, 1), w1=torch.ones(4, 1), entropy=1)
    >>> bool(torch.allclose(bm(1.0), torch.ones(4, 1)))
    True
    """

    def __init__(
        self, t0: Any, w0: Tensor, t1: Any = None, w1: Tensor | None = None, entropy: int | None = None,
        tol: float = 1e-6, pool_size: int = 24, cache_depth: int = 9, safety: float | None = None,
    ) -> None:  # fmt: skip
        checks.whole(0)("cache_depth", cache_depth), checks.optional(checks.real())("safety", safety)
        W = None if w1 is None else _validate_value("w1", w1) - _validate_value("w0", w0)
        super().__init__(t0, w0, t1=t1, entropy=entropy, tol=tol, pool_size=pool_size, W=W)


@explain_passed_arguments
def brownian_interval_like(
    y: Tensor, t0: Any = 0.0, t1: Any = 1.0, size: Sequence[int] | None = None, dtype: torch.dtype | None = None,
    device: Any = None, **more: Any,
) -> BrownianInterval:  # fmt: skip
    """A `BrownianInterval` with the size, dtype and device of a tensor.

    Parameters
    ----------
    y : tensor
        The example.
    t0, t1 : float or tensor
        The interval.
    size, dtype, device
        Instead of those of `y`.
    **more
        Further arguments of `BrownianInterval`.

    Returns
    -------
    BrownianInterval
        The Brownian motion.

    Examples
    --------
    >>> import torch
    >>> from stepnet.torch import brownian_interval_like
    >>> brownian_interval_like(torch.zeros(4, 2), entropy=1).shape
    torch.Size([4, 2])
    """
    y = _validate_value("y", y)
    size, dtype = y.shape if size is None else size, y.dtype if dtype is None else dtype
    return BrownianInterval(t0, t1, size, dtype, y.device if device is None else device, **more)


# ---- arguments ------------------------------------------------------------------------------------------------------


def _validate_value(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise TypeError(
            f"`{name}` must be a floating-point tensor, found {getattr(value, 'dtype', type(value).__name__)}"
        )
    return value


def _find_example(W: Any, H: Any) -> Tensor | None:
    """The first tensor given, both being checked."""
    given = [_validate_value(name, x) for name, x in (("W", W), ("H", H)) if x is not None]
    return given[0] if given else None


def _validate_size(size: Any, W: Tensor | None, H: Tensor | None) -> torch.Size:
    shapes = [x.shape for x in (W, H) if x is not None]
    if size is not None:
        shapes.insert(0, torch.Size(checks.sequence(checks.whole(1, MOST_PATHS))("size", size)))
    if not shapes:
        raise ValueError("`size` must be the shape of an increment, (batch, components), found None without `W` or `H`")
    if len(set(shapes)) > 1:
        raise ValueError(f"`size`, `W` and `H` must have one shape, found {[tuple(each) for each in shapes]}")
    if len(shapes[0]) > 1:
        checks.whole(1, MOST_COMPONENTS)("size[-1]", shapes[0][-1])
    return shapes[0]


def _validate_dtype(dtype: Any, like: Tensor | None) -> torch.dtype:
    found = dtype if dtype is not None else torch.get_default_dtype() if like is None else like.dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise TypeError(f"`dtype` must be a floating-point dtype of torch, found {found!r:.60}")
    return found


def _validate_device(device: Any, like: Tensor | None) -> torch.device:
    if device is None:
        return torch.get_default_device() if like is None else like.device
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"`device` must be a device of torch, found {device!r:.60}") from error


def _count_cells(t0: float, t1: float, dt: float | None) -> int:
    if dt is None:
        return 1
    if not dt > 0:
        raise ValueError(f"`dt` must be positive, found {dt:g}")
    return max(1, round((t1 - t0) / dt))


def _number_paths(paths: Any, n: int, device: torch.device) -> Tensor:
    """The numbers of n paths: from a first one on, or as given."""
    if isinstance(paths, Tensor):
        paths = paths.tolist()
    numbers = validate_paths("paths", paths)
    if numbers.ndim == 0:
        if numbers + n > MOST_PATHS:
            raise ValueError(f"`paths` must be at most {MOST_PATHS - n} for {n} samples, found {numbers}")
        numbers = numbers + np.arange(n)
    elif numbers.shape != (n,):
        raise ValueError(f"`paths` must be a number or {n} of them, one for each sample, found {numbers.size}")
    return torch.as_tensor(numbers, device=device)
