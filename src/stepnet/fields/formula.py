"""Right-hand sides as chains of layers: x -> s_1(K_1 x + b_1) -> s_2(K_2 ... + b_2) -> ... -> sign times the last.

All formulas of networks are such chains: s(K x + b) is one layer, -K' s(K x + b) two of which the second is transposed
and shares its weights, an MLP any number; a normalisation N in s(N(K x + b)) is a separate layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from stepnet.errors import UnknownName
from stepnet.fields.activations import IDENTITY, Activation, activation
from stepnet.fields.connectivity import Connectivity, Mixing, Normalisation, dense, require_all
from stepnet.records import explain_passed_arguments, validate_number
from stepnet.validation import check, sequence, validate_flag, whole

NORMS = {"layer": True, "rms": False}
"""Names of normalisations, and whether they subtract the mean."""


@check(is_transposed=validate_flag, is_antisymmetric=validate_flag)
@dataclass(frozen=True, eq=False)
class Layer:
    """s(K x + b), with variations.

    Parameters
    ----------
    connectivity : Mixing, Fixed, Attention or Normalisation
    weights, bias, clock : str or None
        Names of the parameters: of K, of b (one number per channel), and of c in K x + b + t c, which is equivalent to
        time as a further input.
    activation : Activation
    is_transposed : bool
        K' instead of K.  Where K depends on the state, it is taken at the input of the chain.
    is_antisymmetric : bool
        K - K' instead of K.
    shift : float
        K + shift I instead of K.

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.Layer(fields.dense(3, 2), activation=fields.activation("relu")).bias
    'b'
    """

    connectivity: Connectivity
    weights: str | None = "K"
    bias: str | None = "b"
    activation: Activation = IDENTITY
    clock: str | None = None
    is_transposed: bool = False
    is_antisymmetric: bool = False
    shift: float = 0.0

    def __post_init__(self) -> None:
        K = self.connectivity
        if not isinstance(K, Connectivity):
            raise TypeError(f"`K` must be a connectivity such as `fields.dense(3)`, found {K!r:.60}")
        object.__setattr__(self, "activation", activation(self.activation))
        object.__setattr__(self, "shift", validate_number("shift", self.shift))
        self._check_names()
        if (self.is_antisymmetric or self.shift) and K.n_in != K.n_out:
            raise ValueError(f"K must be square for K - K' and for K + shift I, found {K.n_out} by {K.n_in}")
        if self.is_transposed and isinstance(K, Normalisation):
            raise ValueError("a normalisation cannot be transposed: it is its own transpose where it stands")
        if not self.is_antisymmetric:
            return
        if not isinstance(K, Mixing):
            raise ValueError(f"K - K' needs a K that is linear in the state and has weights, found {K.name}")
        if K.mirror is None or K.channels_in != K.channels_out:
            raise ValueError(f"K - K' needs operators whose transposes are among them; those of {K.name!r} are not")

    def _check_names(self) -> None:
        for what in ("weights", "bias", "clock"):
            name = getattr(self, what)
            if not (name is None or isinstance(name, str)):
                raise TypeError(f"`{what}` must be the name of a parameter or None, found {name!r:.60}")
        if self.weights is None and self.connectivity.weight_shape is not None:
            raise ValueError(f"`weights` must be a name, as {self.connectivity.name} has weights; found None")
        _ = self.parameters

    @property
    def n_in(self) -> int:
        return self.connectivity.n_out if self.is_transposed else self.connectivity.n_in

    @property
    def n_out(self) -> int:
        return self.connectivity.n_in if self.is_transposed else self.connectivity.n_out

    @property
    def axes_in(self) -> tuple[int, ...]:
        """The shape of a sample, channels first."""
        return self.connectivity.axes_out if self.is_transposed else self.connectivity.axes_in

    @property
    def axes_out(self) -> tuple[int, ...]:
        """The shape of an output, channels first."""
        return self.connectivity.axes_in if self.is_transposed else self.connectivity.axes_out

    @property
    def bias_nodes(self) -> int:
        """The number of nodes that share an entry of the bias."""
        K = self.connectivity
        return K.nodes_in if self.is_transposed and isinstance(K, Mixing) else K.bias_nodes

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes."""
        each = (self.n_out // self.bias_nodes,)
        shapes = ((self.weights, self.connectivity.weight_shape), (self.bias, each), (self.clock, each))
        return join_parameters({name: shape} for name, shape in shapes if name is not None and shape is not None)


@dataclass(frozen=True, eq=False)
class Chain:
    """sign s_m(K_m ... s_1(K_1 x + b_1) ... + b_m).

    Parameters
    ----------
    layers : tuple of Layer
        Applied in this order.
    sign : float, optional
        A factor of the result.

    Examples
    --------
    >>> from stepnet import fields
    >>> len(fields.mlp([2, 16, 2]).layers)
    2
    """

    layers: tuple[Layer, ...]
    sign: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", require_all("layers", self.layers, Layer))
        object.__setattr__(self, "sign", validate_number("sign", self.sign))
        if abs(self.sign) != 1.0:
            raise ValueError(f"`sign` must be 1 or -1, found {self.sign:g}; a field is scaled by its weights")
        for before, after in pairwise(self.layers):
            if before.n_out != after.n_in:
                raise ValueError(f"a layer gives {before.n_out} features, but the next one takes {after.n_in}")
        _ = self.parameters

    @property
    def n_in(self) -> int:
        return self.layers[0].n_in

    @property
    def n_out(self) -> int:
        return self.layers[-1].n_out

    @property
    def axes_in(self) -> tuple[int, ...]:
        """The shape of a sample, channels first."""
        return self.layers[0].axes_in

    @property
    def axes_out(self) -> tuple[int, ...]:
        """The shape of an output, channels first."""
        return self.layers[-1].axes_out

    @property
    def activation(self) -> Activation:
        """The activation of the last layer that has one."""
        return next((layer.activation for layer in reversed(self.layers) if layer.activation is not IDENTITY), IDENTITY)

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes; layers with the same name share the parameter."""
        return join_parameters(layer.parameters for layer in self.layers)


def join_parameters(some: Iterable[Any]) -> dict[str, tuple[int, ...]]:
    """Parameters of several parts, shared by name."""
    found: dict[str, tuple[int, ...]] = {}
    for parameters in some:
        for name, shape in parameters.items():
            if found.setdefault(name, shape) != shape:
                raise ValueError(f"the parameter {name!r} cannot have both shapes {found[name]} and {shape}")
    return found


@explain_passed_arguments
def affine(K: Connectivity, s: Any = "tanh", sign: float = 1.0, norm: str | None = None, **variations: Any) -> Chain:
    """s(K x + b), or s(N(K x + b)) with the normalisation N called `norm`: "layer" or "rms".

    Parameters
    ----------
    K : Connectivity
        The connectivity.
    s
        The activation or its name.
    sign : float, optional
        A factor of the result.
    norm : str, optional
        The normalisation N: "layer", "rms" or None.
    **variations
        Further arguments of `Layer`.

    Returns
    -------
    Chain

    Examples
    --------
    >>> from stepnet import fields
    >>> len(fields.affine(fields.dense(3), norm="layer").layers)
    2
    """
    return Chain(_activate(Layer(K, **variations), s, norm), sign)


def symmetric(K: Connectivity, s: Any = "tanh", sign: float = -1.0, norm: str | None = None) -> Chain:
    """sign K' s(K x + b), or sign K' s(N(K x + b)).

    Parameters
    ----------
    K : Connectivity
        The connectivity.
    s
        The activation or its name.
    sign : float, optional
        A factor of the result.
    norm : str, optional
        The normalisation N: "layer", "rms" or None.

    Returns
    -------
    Chain

    Examples
    --------
    >>> from stepnet import fields
    >>> fields.symmetric(fields.dense(3)).sign
    -1.0
    """
    return Chain((*_activate(Layer(K), s, norm), Layer(K, bias=None, is_transposed=True)), sign)


def _activate(layer: Layer, s: Any, norm: str | None) -> tuple[Layer, ...]:
    """The layers of s(u) for the layer u, with a normalisation between them if requested."""
    if norm is None:
        return (replace(layer, activation=activation(s)),)
    if not isinstance(norm, str) or norm not in NORMS:
        raise UnknownName("norm", norm, NORMS)
    N = Normalisation(layer.n_out // layer.bias_nodes, layer.bias_nodes, NORMS[norm])
    return layer, Layer(N, None, None, activation(s))


def two_layer(K1: Connectivity, K2: Connectivity, s: Any = "tanh") -> Chain:
    """K_2 s(K_1 x + b_1) + b_2.

    Parameters
    ----------
    K1, K2 : Connectivity
        The connectivities.
    s
        The activation or its name.

    Returns
    -------
    Chain

    Examples
    --------
    >>> from stepnet import fields
    >>> len(fields.two_layer(fields.dense(2, 8), fields.dense(8, 2)).layers)
    2
    """
    return Chain((Layer(K1, "K1", "b1", activation(s)), Layer(K2, "K2", "b2")))


@check(widths=sequence(whole(1), least=2), has_time=validate_flag)
def mlp(widths: Sequence[int], s: Any = "tanh", has_time: bool = False, norm: str | None = None) -> Chain:
    """Dense layers of these widths, the last one linear; with `has_time` t is an input of the first.

    Parameters
    ----------
    widths : sequence of int
        Features before the first layer and after each layer.
    s
        The activation or its name.
    has_time : bool, optional
        Whether t is an input of the first layer.
    norm : str, optional
        The normalisation before each activation: "layer", "rms" or None.

    Returns
    -------
    Chain

    Examples
    --------
    >>> from stepnet import fields
    >>> len(fields.mlp([2, 16, 16, 2]).layers)
    3
    """
    plain = [
        Layer(dense(n_in, n_out), f"K{i}", f"b{i}", clock="c1" if has_time and i == 1 else None)
        for i, (n_in, n_out) in enumerate(pairwise(widths), 1)
    ]
    hidden = [each for layer in plain[:-1] for each in _activate(layer, s, norm)]
    return Chain((*hidden, plain[-1]))
