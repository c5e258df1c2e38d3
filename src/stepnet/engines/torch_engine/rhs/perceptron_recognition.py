"""Recognition of functions that are multilayer perceptrons and nothing else.

Recognised are functions and `forward` methods that only pass the state on, `return self.net(y)`, to a net of known
layers without hooks, parametrizations and the like.  All other functions are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from stepnet.engines.torch_engine.codegen.compilation import mark_constant

NAMES: dict[type, str] = {
    nn.ELU: "elu", nn.GELU: "gelu", nn.ReLU: "relu", nn.SiLU: "silu", nn.Sigmoid: "sigmoid", nn.Softplus: "softplus",
    nn.Tanh: "tanh",
}  # fmt: skip
NUMBERS: dict[type, dict[str, Any]] = {nn.ELU: {"alpha": 1.0}, nn.GELU: {"approximate": "none"}}
NUMBERS[nn.Softplus] = {"beta": 1.0, "threshold": 20.0}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
UNUSUAL = CO_ASYNC_GENERATOR | CO_COROUTINE | CO_GENERATOR | CO_VARARGS | CO_VARKEYWORDS

Layers = tuple[tuple[nn.Linear, ...], tuple[str, ...]]
"""Linear layers, and the names of the activations between them."""


def _call_own(self: Any, t: Any, y: Any) -> Any:
    return self.net(y)


def _call_global(t: Any, y: Any) -> Any:
    return net(y)  # type: ignore[name-defined]  # noqa: F821


def _call_outer(net: Any) -> Callable[[Any, Any], Any]:
    return lambda t, y: net(y)


OWN, GLOBAL, OUTER = (each.__code__ for each in (_call_own, _call_global, _call_outer(None)))


def recognised(func: object) -> str | None:
    """Describe the perceptron that `odeint` recognises in a function (t, y), as "2 -> 64 tanh -> 2"; else None.

    Recognised are modules and functions that only pass y on, `return self.net(y)`, to a `torch.nn.Sequential` of Linear
    layers with an activation (ELU, GELU, ReLU, SiLU, Sigmoid, Softplus or Tanh, with default arguments) between every
    two, without hooks and parametrizations.

    Parameters
    ----------
    func
        A module or function (t, y).

    Returns
    -------
    str or None

    Examples
    --------
    >>> import torch, stepnet.torch as snt
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    >>> snt.recognised(lambda t, y: net(y))
    '2 -> 64 tanh -> 2'
    """
    layers = find_layers(func)
    if layers is None:
        return None
    linear, activations = layers
    widths = [f"{layer.out_features} {name}" for layer, name in zip(linear, activations, strict=False)]
    return " -> ".join((str(linear[0].in_features), *widths, str(linear[-1].out_features)))


def find_layers(func: object) -> Layers | None:
    """The layers of a function of (t, y), if it is recognised as consisting of them alone."""
    net = _find_receiver(func)
    if net is None or torch.nn.modules.module._has_any_global_hook():
        return None
    modules = list(_flatten(net))
    linear, between = modules[::2], modules[1::2]
    if len(linear) != len(between) + 1 or not all(map(_is_bare, modules)):
        return None
    if not all(map(_is_linear, linear)) or not all(map(_is_activation, between)):
        return None
    return tuple(linear), tuple(NAMES[type(module)] for module in between)  # type: ignore[arg-type]


def _is_linear(module: nn.Module) -> bool:
    """Whether a module is a plain linear layer with ordinary parameters."""
    if type(module) is not nn.Linear:
        return False
    weight, bias = (module._parameters.get(name, module) for name in ("weight", "bias"))
    return type(weight) is nn.Parameter and (bias is None or type(bias) is nn.Parameter)


def _is_activation(module: nn.Module) -> bool:
    kind = type(module)
    return kind in NAMES and all(getattr(module, name) == value for name, value in NUMBERS.get(kind, {}).items())


def _find_receiver(func: object) -> nn.Module | None:
    """The module to which the function passes its state."""
    if isinstance(func, torch.jit.ScriptModule):
        return None
    if isinstance(func, nn.Module):
        name = _find_name_in_forward(type(func))
        is_plain = name is not None and _is_bare(func) and name not in func.__dict__
        return func._modules.get(name) if is_plain else None  # type: ignore[arg-type]
    if type(func) is not FunctionType or torch.compiler.is_compiling():
        return None
    if _is_same(func.__code__, GLOBAL):
        net = func.__globals__.get(func.__code__.co_names[0])
    elif _is_same(func.__code__, OUTER):
        net = func.__closure__[0].cell_contents  # type: ignore[index]
    else:
        return None
    return net if isinstance(net, nn.Module) else None


@mark_constant
def _find_name_in_forward(kind: type[nn.Module]) -> str | None:
    """`net` for a class with `forward` equal to `return self.net(y)` and the default calls and attribute lookup."""
    forward = kind.forward
    if type(forward) is not FunctionType or not _is_same(forward.__code__, OWN):
        return None
    own = ("__call__", "_call_impl", "__getattr__")
    is_usual = all(getattr(kind, name) is getattr(nn.Module, name) for name in own)
    name = forward.__code__.co_names[0]
    is_usual &= kind.__getattribute__ is object.__getattribute__ and not hasattr(kind, name)
    return name if is_usual else None


def _is_same(code: CodeType, pattern: CodeType) -> bool:
    """Whether two functions have the same code, up to names."""
    counts: Callable[[CodeType], tuple[int, ...]] = lambda code: (
        code.co_argcount,
        code.co_kwonlyargcount,
        len(code.co_names),
        len(code.co_freevars),
    )
    return code.co_code == pattern.co_code and counts(code) == counts(pattern) and not code.co_flags & UNUSUAL


def _flatten(module: nn.Module) -> Iterator[nn.Module]:
    """The modules inside sequences, in order; a sequence with hooks is not flattened."""
    if type(module) is nn.Sequential and _is_bare(module):
        for part in module:
            yield from _flatten(part)
    elif type(module) is not nn.Identity or not _is_bare(module):
        yield module


def _is_bare(module: nn.Module) -> bool:
    """Whether calling a module only calls the `forward` of its class."""
    has_hooks = any(getattr(module, name) for name in HOOKS)
    return not has_hooks and "forward" not in module.__dict__ and module._compiled_call_impl is None
