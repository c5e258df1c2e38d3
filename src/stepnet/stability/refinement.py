"""Whether a net is the discretisation of an ODE: outputs with half the step and with another scheme."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.fields import HeldWeights
from stepnet.nets.design import Block, Design
from stepnet.nets.net import Net
from stepnet.records import as_array, show_fields
from stepnet.schemes import catalogue
from stepnet.stability.arguments import choose_classes
from stepnet.validation import check, instance, real

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

FIRST, OTHER = ("rk4", "dopri5"), ("yoshida4", "blanes_moan4")
"""Schemes to compare with, of y' = f(t, y) and of partitioned states; the second if the net has the first."""


@dataclass(frozen=True, repr=False, eq=False)
class DepthRefinement:
    """How much a net changes with half the step size and with another scheme.

    Parameters
    ----------
    change : float
        The change of the outputs if h is halved, with weights interpolated in depth: root mean square over the samples,
        relative to the spread of the outputs.
    second_change : float
        The change if h is halved once more.
    scheme_change : float
        The change of the outputs with the scheme of higher order `scheme`.
    feature_change : float
        The largest relative change of the states of a block, over its depth.
    variation : float
        Root mean square of differences of neighbouring weights relative to that of the weights.
    scheme : str
    accuracies : tuple of float
        The accuracy of the net, of that with half the step, and of that with the other scheme; NaN without labels.
    is_ode : bool
    verdict : str
        A summary in one sentence.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> net = sn.nets.hamiltonian(2, 2, 4, 20, length=1.0)
    >>> sn.stability.depth_refinement(net, np.eye(2)).scheme
    'yoshida4'
    """

    change: float
    second_change: float
    scheme_change: float
    feature_change: float
    variation: float
    scheme: str
    accuracies: tuple[float, float, float]
    is_ode: bool
    verdict: str

    def __repr__(self) -> str:
        return show_fields(self)

    @property
    def observed_order(self) -> float:
        """log2 of the quotient of the two changes: the order of the scheme, for weights that are smooth in depth."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.log2(np.float64(self.change) / self.second_change))


@check(net=instance(Net), tolerance=real("(0, inf)"))
def depth_refinement(
    net: Net, x: ArrayLike, labels: ArrayLike | None = None, *, tolerance: float = 0.1
) -> DepthRefinement:
    """Test whether a net discretises an ODE: refine its depth, change its scheme, compare outputs, states and accuracy.

    Weights of a finer net are interpolated linearly between the layers.  If the net is the discretisation of an ODE
    with weights that are functions of depth, its outputs change little; Ott et al. (2021), ICLR.

    Parameters
    ----------
    net : Net
        With blocks that have a scheme and no noise.
    x : array_like
        Inputs.
    labels : array_like of int, optional
        Classes, the indices of the largest outputs; for a single output, 1 where it is positive.
    tolerance : float, optional
        The relative change up to which the net counts as an ODE.

    Returns
    -------
    DepthRefinement

    Raises
    ------
    ValueError
        If a block has no scheme, or noise.

    Examples
    --------
    >>> import numpy as np, stepnet as sn
    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> smooth = sn.nets.resnet(2, 2, 6, 40, length=1.0, degree=3, controls=4)
    >>> plain = sn.nets.resnet(2, 2, 6, 10, length=10.0)
    >>> [sn.stability.depth_refinement(net, x).is_ode for net in (smooth, plain)]
    [True, False]
    """
    for number, block in enumerate(net.design.blocks):
        if block.scheme is None:
            raise ValueError(f"`net` must have blocks with a scheme, found block {number} of layers without a skip")
    if net.has_noise:
        raise ValueError("`net` must have no noise, found a diffusion")
    shape = np.shape(as_array("x", x))
    if not shape:
        raise ValueError(f"`x` must be inputs with samples along the first axis, found {x!r:.60}")
    if labels is not None and np.shape(as_array("labels", labels)) != shape[:1]:
        raise ValueError(f"`labels` must be one for each of {shape[0]} inputs, found {np.shape(labels)}")
    half, quarter = refine_smoothly(net, 2), refine_smoothly(net, 4)
    swapped, scheme = _swap_schemes(half)
    outputs = [np.asarray(each(x)).reshape(np.shape(x)[0], -1) for each in (net, half, quarter, swapped)]
    spread = _size(outputs[1] - outputs[1].mean(axis=0)) or _size(outputs[1]) or 1.0
    change, second = (_size(outputs[k + 1] - outputs[k]) / spread for k in (0, 1))
    other = _size(outputs[3] - outputs[0]) / spread
    accuracies = (float("nan"),) * 3 if labels is None else tuple(
        float(np.mean(choose_classes(each) == np.asarray(labels))) for each in (outputs[0], outputs[1], outputs[3])
    )  # fmt: skip
    largest = max(change, other)
    is_ode = bool(largest <= tolerance)
    verdict = (
        f"{'an ODE' if is_ode else 'not an ODE'}: with half the step the outputs change by {change:.2g} of their "
        f"spread, with {scheme} by {other:.2g} ({'within' if is_ode else 'more than'} {tolerance:g})"
    )
    return DepthRefinement(change, second, other, _compare_states(net, half, x), _measure_variation(net), scheme,
                           accuracies, is_ode, verdict)  # type: ignore[arg-type]  # fmt: skip


def refine_smoothly(net: Net, factor: int) -> Net:
    """The net with more steps; weights of layers are values at their midpoints and interpolated linearly between."""
    blocks, values = [], {}
    for i, block in enumerate(net.design.blocks):
        finer, count = block.steps * factor, block.depth.controls
        if block.depth.degree == 0 and count > 1:
            depth: Any = HeldWeights(count * factor)
            new, old = ((np.arange(n) + 0.5) / n for n in (count * factor, count))
            for name in block.parameters:
                flat = net.weights[f"blocks.{i}.{name}"].reshape(count, -1)
                values[f"blocks.{i}.{name}"] = np.stack([np.interp(new, old, each) for each in flat.T], axis=1)
        else:
            depth = block.depth
        blocks.append(Block(block.field, block.scheme, finer, block.length, depth))
    return _rebuild(net, blocks, values)


def _rebuild(net: Net, blocks: list[Block], values: dict[str, np.ndarray]) -> Net:
    """A net with these blocks and the weights of the net, some of them replaced."""
    design = Design(tuple(blocks), net.design.opening, net.design.readout, net.design.joins)
    count = sum(int(np.prod(shape)) for shape in design.shapes.values())
    found = Net(design, np.zeros(count), dtype=net.dtype, workers=net.workers, layout=net.layout)
    for name, place in found.weights.items():
        place[...] = np.reshape(values.get(name, net.weights[name]), place.shape)
    return found


def _swap_schemes(net: Net) -> tuple[Net, str]:
    """The net with a scheme of higher order, and its name."""
    blocks, names = [], []
    for block in net.design.blocks:
        choice = FIRST if block.field.kind == "first" else OTHER
        names.append(choice[block.scheme_name == choice[0]])
        blocks.append(replace(block, scheme=catalogue.get(names[-1])))
    return _rebuild(net, blocks, {}), ", ".join(dict.fromkeys(names))


def _compare_states(net: Net, finer: Net, x: ArrayLike) -> float:
    """The largest relative change of the states at equal depths."""
    found = 0.0
    for i in range(len(net.design.blocks)):
        states, fine = net.features(x, i), finer.features(x, i)
        stride = (len(fine) - 1) // (len(states) - 1)
        sizes = np.sqrt(np.mean(states**2, axis=(1, 2)))
        errors = np.sqrt(np.mean((fine[::stride] - states) ** 2, axis=(1, 2)))
        found = max(found, float((errors / np.maximum(sizes, np.finfo(float).tiny)).max()))
    return found


def _measure_variation(net: Net) -> float:
    """Differences of neighbouring weights in depth, relative to the weights."""
    differences, sizes = 0.0, 0.0
    for i, block in enumerate(net.design.blocks):
        for name in block.parameters:
            values = net.weights[f"blocks.{i}.{name}"]
            differences += float(np.sum(np.diff(values, axis=0) ** 2)) * len(values) / max(len(values) - 1, 1)
            sizes += float(np.sum(values**2))
    return float(np.sqrt(differences / sizes)) if sizes else 0.0


def _size(array: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(array))))
