"""Drift and diffusion of the objects that `sdeint` takes, in all the forms torchsde accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stepnet.engines.torch_engine import StepNeeds, StochasticField
from stepnet.errors import UnknownName
from stepnet.schemes.stochastic import CALCULI, NOISE_TYPES

NAMES = {
    "drift": "f", "diffusion": "g", "prior_drift": "h", "diffusion_prod": "g_prod", "drift_and_diffusion": "f_and_g",
    "drift_and_diffusion_prod": "f_and_g_prod",
}  # fmt: skip
"""Keys of `names`, and the names of methods that they replace."""
LEAST_DIFFUSION = 1e-7  # smallest diffusion by which a log-ratio is divided, as in torchsde

Function = Callable[..., Any]


class SDEFunctions(NamedTuple):
    """The methods of an sde object that exist, its type of noise and its calculus."""

    noise: str
    calculus: str
    f: Function | None = None
    g: Function | None = None
    h: Function | None = None
    g_prod: Function | None = None
    f_and_g: Function | None = None
    f_and_g_prod: Function | None = None


def find_functions(sde: Any, names: Any) -> SDEFunctions:
    """The methods of an sde object under their usual names or those of `names`."""
    names = {} if names is None else names
    if not isinstance(names, dict) or not all(isinstance(value, str) for value in names.values()):
        raise TypeError(f"`names` must be a dictionary of names of methods, found {names!r:.60}")
    for key in names:
        if key not in NAMES:
            raise UnknownName("key of `names`", key, NAMES)
    noise, calculus = (_read_type(sde, *which) for which in (("noise_type", NOISE_TYPES), ("sde_type", CALCULI)))
    found = {ours: getattr(sde, names.get(key, ours), None) for key, ours in NAMES.items()}
    for key, name in names.items():
        if found[NAMES[key]] is None:
            raise ValueError(f"`sde` has no method {name!r}, which `names` gives for the {key}")
    if not any(found[name] is not None for name in ("f", "f_and_g", "f_and_g_prod")):
        raise ValueError("`sde` must have a method `f`, `f_and_g` or `f_and_g_prod`: the drift")
    if not any(found[name] is not None for name in ("g", "f_and_g", "g_prod", "f_and_g_prod")):
        raise ValueError("`sde` must have a method `g`, `f_and_g`, `g_prod` or `f_and_g_prod`: the diffusion")
    return SDEFunctions(noise, calculus, **found)


def _read_type(sde: Any, name: str, known: tuple[str, ...]) -> str:
    if not hasattr(sde, name):
        raise TypeError(
            f"`sde` must have the attribute `{name}`, one of {', '.join(known)}; found {type(sde).__name__}"
        )
    value = getattr(sde, name)
    if not isinstance(value, str) or value not in known:
        raise UnknownName(f"{name} of `sde`", value, known)
    return value


# ---- fields ---------------------------------------------------------------------------------------------------------


def build_field(sde: SDEFunctions, needs: StepNeeds, kind: str, n_components: int, scheme: str) -> StochasticField:
    """The functions that the steps of a scheme call."""
    if sde.f_and_g is not None:
        sde = _divide_pair(sde, sde.f_and_g, needs.has_pairs)
    diffusion = _choose_diffusion(sde, needs, scheme)
    if sde.noise == "scalar":
        diffusion = _drop_component(diffusion)
    return StochasticField(_choose_drift(sde, n_components), diffusion, kind, n_components)


def _divide_pair(sde: SDEFunctions, f_and_g: Function, has_pairs: bool) -> SDEFunctions:
    """The equation with f and g from `f_and_g` where they are missing, or where each call gives both."""
    if has_pairs:
        both = _PairedCalls(f_and_g)
        return sde._replace(f=lambda t, y: both(t, y)[0], g=lambda t, y: both(t, y)[1])
    return sde._replace(f=sde.f or (lambda t, y: f_and_g(t, y)[0]), g=sde.g or (lambda t, y: f_and_g(t, y)[1]))


class _PairedCalls:
    """Evaluates a function once for two successive calls with the same tensors; compilers detect this themselves."""

    def __init__(self, function: Function):
        self.function = function
        self.last: tuple[Tensor, Tensor, Any] | None = None

    def __call__(self, t: Tensor, y: Tensor) -> Any:
        if torch.compiler.is_compiling():
            return self.function(t, y)
        last, self.last = self.last, None
        if last is not None and last[0] is t and last[1] is y:
            return last[2]
        found = self.function(t, y)
        self.last = t, y, found
        return found


def _choose_drift(sde: SDEFunctions, n_components: int) -> Function:
    if sde.f is not None:
        return sde.f
    both: Function = sde.f_and_g_prod  # type: ignore[assignment]
    return lambda t, y: both(t, y, y.new_zeros(len(y), n_components))[0]


def _choose_diffusion(sde: SDEFunctions, needs: StepNeeds, scheme: str) -> Function:
    """Products with vectors where a step has one with each diffusion and nothing else, otherwise the diffusion."""
    product = _choose_product(sde)
    if product is None or (sde.g is not None and not needs.has_single_products):
        return sde.g  # type: ignore[return-value]
    if needs.derivative:
        raise ValueError(f"`sde` must have a method `g` or `f_and_g`: {scheme} needs the derivative of the diffusion")
    return lambda t, y: lambda v: product(t, y, v)


def _choose_product(sde: SDEFunctions) -> Function | None:
    if sde.g_prod is not None or sde.f_and_g_prod is None:
        return sde.g_prod
    both = sde.f_and_g_prod
    return lambda t, y, v: both(t, y, v)[1]


def _drop_component(diffusion: Function) -> Function:
    """The diffusion of scalar noise, (batch, n, 1), as (batch, n)."""

    def dropped(t: Tensor, y: Tensor) -> Any:
        g = diffusion(t, y)
        return g.squeeze(-1) if isinstance(g, Tensor) and g.ndim == 3 and g.shape[-1] == 1 else g

    return dropped


# ---- log-ratio of a posterior and its prior -------------------------------------------------------------------------


def add_log_ratio(sde: SDEFunctions) -> SDEFunctions:
    """The equation with |u|^2 / 2, g u = f - h, as the slope of a further entry of the state, without noise."""
    if sde.f is None or sde.g is None or sde.h is None:
        raise ValueError("`sde` must have the methods `f`, `g` and `h` (the prior drift) for `logqp`")
    f, g, h = sde.f, sde.g, sde.h
    divide = _divide_elementwise if sde.noise == "diagonal" else _divide_by_matrix

    def f_and_g(t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        y = y[:, :-1]
        drift, diffusion = f(t, y), g(t, y)
        u = divide(drift - h(t, y), diffusion)
        rate = 0.5 * u.square().sum(dim=1, keepdim=True)
        zeros = diffusion.new_zeros(len(diffusion), 1, *diffusion.shape[2:])
        return torch.cat((drift, rate), dim=1), torch.cat((diffusion, zeros), dim=1)

    def diffusion_only(t: Tensor, y: Tensor) -> Tensor:
        diffusion = g(t, y[:, :-1])
        return torch.cat((diffusion, diffusion.new_zeros(len(diffusion), 1, *diffusion.shape[2:])), dim=1)

    return SDEFunctions(sde.noise, sde.calculus, f=lambda t, y: f_and_g(t, y)[0], g=diffusion_only, f_and_g=f_and_g)


def _divide_elementwise(x: Tensor, g: Tensor) -> Tensor:
    return x / torch.where(g.detach().abs() > LEAST_DIFFUSION, g, LEAST_DIFFUSION * g.sign())


def _divide_by_matrix(x: Tensor, g: Tensor) -> Tensor:
    return torch.einsum("bmn,bn->bm", torch.linalg.pinv(g), x)


# ---- classes to inherit from ----------------------------------------------------------------------------------------


class BaseSDE(nn.Module):
    """A module with the attributes `noise_type` and `sde_type`; `f` and `g` are defined by subclasses.

    Parameters
    ----------
    noise_type : {"diagonal", "scalar", "additive", "commutative", "general"}
        The shape of `g(t, y)`: (batch, n) for diagonal noise, (batch, n, m) for the others, m = 1 for scalar noise.
    sde_type : {"ito", "stratonovich"}
        The sense of the integral.

    Examples
    --------
    >>> from stepnet.torch import BaseSDE
    >>> BaseSDE("diagonal", "ito").noise_type
    'diagonal'
    """

    def __init__(self, noise_type: str, sde_type: str) -> None:
        super().__init__()
        for name, value, known in (("noise_type", noise_type, NOISE_TYPES), ("sde_type", sde_type, CALCULI)):
            if not isinstance(value, str) or value not in known:
                raise UnknownName(f"`{name}`", value, known)
        self.noise_type, self.sde_type = noise_type, sde_type


class SDEIto(BaseSDE):
    """A module for an Ito equation, to inherit from.

    Parameters
    ----------
    noise_type : {"diagonal", "scalar", "additive", "commutative", "general"}
        As in `BaseSDE`.

    Examples
    --------
    >>> from stepnet.torch import SDEIto
    >>> SDEIto("diagonal").sde_type
    'ito'
    """

    def __init__(self, noise_type: str) -> None:
        super().__init__(noise_type, "ito")


class SDEStratonovich(BaseSDE):
    """A module for a Stratonovich equation, to inherit from.

    Parameters
    ----------
    noise_type : {"diagonal", "scalar", "additive", "commutative", "general"}
        As in `BaseSDE`.

    Examples
    --------
    >>> from stepnet.torch import SDEStratonovich
    >>> SDEStratonovich("general").sde_type
    'stratonovich'
    """

    def __init__(self, noise_type: str) -> None:
        super().__init__(noise_type, "stratonovich")
