"""Nets of one block, and what presets share: openings, readouts, fields and schemes by name."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from stepnet import fields
from stepnet.errors import UnknownName
from stepnet.fields import (
    Chain,
    Connectivity,
    Depth,
    Diffusion,
    Field,
    HeldWeights,
    Layer,
    Mixing,
    dense,
    resized,
)
from stepnet.fields.connectivity import count
from stepnet.nets.design import Block, Design
from stepnet.nets.net import Net
from stepnet.records import explain_arguments, validate_number

if TYPE_CHECKING:
    from stepnet.fields import Activation


HALVED = {
    "hamiltonian": "symplectic_euler_drift",
    "staggered": "symplectic_euler_kick",
    "hyperbolic": "symplectic_euler_kick",
}
"""Dynamics with a partitioned state, and the schemes whose steps are the layers of the original papers."""


@explain_arguments(also=signature(Net).parameters)
def compose_net(
    field: Field, scheme: Any, steps: int, inputs: int | None = None, outputs: int | None = None, *,
    length: float = 1.0, degree: int | None = None, controls: int | None = None, opening: str = "dense",
    opening_width: int | None = None, read: int | None = None, diffusion: Diffusion | float | None = None,
    **options: Any,
) -> Net:  # fmt: skip
    """Build a net of one block.

    The opening layer maps to `opening_width` features, padded with zeros; the readout uses the first `read` features.

    Parameters
    ----------
    field : Field
        The field of the block.
    scheme
        The scheme or its name; None gives plain layers without a skip connection.
    steps : int
        Number of steps, which are the layers.
    inputs : int, optional
        Features of a sample; None for no opening layer, so that inputs are states.
    outputs : int, optional
        Number of outputs; None for no readout.
    length : float, optional
        The time interval covered by all steps.
    degree, controls : int, optional
        `Depth(controls, degree)` gives the weights as functions of depth; by default they are held over each step.
    opening : str, optional
        "dense" for a layer from the inputs to the state, "augment" to append zeros to the inputs.
    opening_width : int, optional
        Number of features after the opening layer; by default the width of the state.
    read : int, optional
        How many features of the state the readout uses; by default all.
    diffusion : float or Diffusion, optional
        Noise after each step: its standard deviation over unit time, or a record of `fields.diffusion`.
    **options
        Arguments of `Net`.

    Returns
    -------
    Net

    Examples
    --------
    >>> from stepnet import fields, nets
    >>> nets.compose_net(fields.residual(fields.dense(4)), "rk4", 5, inputs=2, outputs=1)([[1.0, 2.0]]).shape
    (1, 1)
    """
    field = field if diffusion is None else field.with_diffusion(build_diffusion(diffusion))
    block = Block(field, scheme, steps, length, _build_depth(steps, degree, controls))
    width = field.width if opening_width is None else opening_width
    design = Design(
        (block,), _build_opening(inputs, width, field.width, opening, field.parts[0].activation),
        _build_readout(field.width, field.width if read is None else count("read", read), outputs),
    )  # fmt: skip
    return Net(design, **options)


def build_diffusion(diffusion: Diffusion | float) -> Diffusion:
    """The record of a diffusion; a number is its constant standard deviation over unit time."""
    if isinstance(diffusion, Diffusion):
        return diffusion
    return fields.diffusion.constant(validate_number("diffusion", diffusion, "[0, inf)"))


def _build_depth(steps: int, degree: int | None, controls: int | None) -> Depth | HeldWeights:
    """Weights with this number of controls, or the default for the steps."""
    if degree is None:
        return HeldWeights(count("steps", steps) if controls is None else controls)
    if controls is None:
        controls = count("steps", steps) + Depth(4, degree).degree
    return Depth(controls, degree)


def _build_opening(inputs: int | None, width: int, state: int, kind: str, activation: str | Activation) -> Chain | None:
    if inputs is None:
        return None if width == state else Chain((Layer(resized(width, state), None, None),))
    first = build_first(dense(count("inputs", inputs), width), kind, activation, state)
    if width == state or kind == "augment":
        return first
    return Chain((*first.layers, Layer(resized(width, state), None, None)))


def build_first(K: Mixing, kind: str, activation: Any, state: int, name: str = "width") -> Chain:
    """A layer from the inputs to the state, or zero channels appended to the inputs."""
    if not isinstance(kind, str) or kind not in ("dense", "augment"):
        raise UnknownName("opening", kind, ("dense", "augment"))
    if kind == "dense":
        return Chain((Layer(K, activation=activation),))
    if K.n_in > state:
        n_in, n_out = K.channels_in, K.channels_out
        raise ValueError(f"`{name}` must be at least the {n_in} inputs to add zeros to them, found {n_out}")
    return Chain((Layer(resized(K.n_in, state, K.axes_in), None, None),))


def _build_readout(state: int, read: int, outputs: int | None) -> Chain | None:
    layers = [] if read == state else [Layer(resized(state, read), None, None)]
    if outputs is not None:
        layers.append(Layer(dense(read, count("outputs", outputs)), "W", "b"))
    return Chain(tuple(layers)) if layers else None


def halve(width: int, name: str = "width") -> int:
    if count(name, width) % 2:
        raise ValueError(f"`{name}` must be even, as the state is partitioned (q, p); found {width}")
    return width // 2


def is_halved(dynamics: object) -> bool:
    return isinstance(dynamics, str) and dynamics in HALVED


def find_scheme(scheme: Any, dynamics: str) -> Any:
    """The given scheme, or by default that of the layer in the literature."""
    if scheme is None:
        return HALVED.get(dynamics, "euler") if isinstance(dynamics, str) else "euler"
    return scheme


def build_field(dynamics: str, K: Connectivity, activation: str | Activation, norm: str | None) -> Field:
    if not isinstance(dynamics, str) or dynamics not in fields.DYNAMICS:
        raise UnknownName("dynamics", dynamics, fields.DYNAMICS)
    return fields.DYNAMICS[dynamics](K, activation, norm=norm)
