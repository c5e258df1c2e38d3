"""Designs: the opening layer, blocks of steps, joins and readout of a net."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, zip_longest
from types import NoneType
from typing import Any

import numpy as np

from stepnet.checkpoints.counts import validate_steps
from stepnet.fields import DYNAMICS, Chain, Depth, Field, HeldWeights, Normalisation
from stepnet.fields.connectivity import require_all
from stepnet.fields.dynamics import DIFFUSION_PART
from stepnet.problem import ProblemForm
from stepnet.schemes import catalogue
from stepnet.schemes.capabilities import (
    accepts,
    find_step_choice_refusal,
    has_history,
    is_implicit,
    moves_parts,
    needs_second_derivatives,
)
from stepnet.schemes.step_program import (
    SchemeProgram,
    Slope,
    StepProgram,
    append_noise,
    build_held_program,
    build_scheme_program,
)

NO_SKIP = SchemeProgram(StepProgram(1, (), (0,), 0), StepProgram(1, (Slope(0, 0, 0.0),), (1,)), (0,))
"""The new state is the slope itself: an MLP."""


@dataclass(frozen=True, eq=False)
class Block:
    """A field integrated by a scheme with equal steps: `steps` layers over the time `length`.

    Parameters
    ----------
    field : Field
    scheme : scheme, str or None
        None gives plain layers without a skip connection, y_(k+1) = f(y_k).
    steps : int
    length : float
    depth : HeldWeights or Depth, optional
        How weights depend on depth: held over each step, by default with separate values for each step, or splines
        evaluated at the time of each stage.

    Examples
    --------
    >>> from stepnet import fields, nets
    >>> nets.Block(fields.residual(fields.dense(4)), "rk4", steps=5).steps
    5
    """

    field: Field
    scheme: Any
    steps: int
    length: float = 1.0
    depth: Depth | HeldWeights = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not isinstance(self.field, Field):
            raise TypeError(f"`field` must be a Field such as `fields.residual(K)`, found {self.field!r:.60}")
        if isinstance(self.scheme, str):
            object.__setattr__(self, "scheme", catalogue.get(self.scheme))
        if self.scheme is not None and not catalogue.is_scheme(self.scheme):
            raise TypeError(f"`scheme` must be a scheme, its name or None, found {self.scheme!r:.60}")
        object.__setattr__(self, "steps", validate_steps("steps", self.steps, 1))
        if not (isinstance(self.length, (int, float, np.floating)) and 0 < self.length <= float(np.finfo(float).max)):
            raise ValueError(f"`length` must be a positive number, found {self.length!r:.60}")
        object.__setattr__(self, "length", float(self.length))
        if self.depth is None:
            object.__setattr__(self, "depth", HeldWeights(self.steps))
        if not isinstance(self.depth, (Depth, HeldWeights)):
            wanted = f"a Depth such as `Depth({self.steps})`, or HeldWeights"
            raise TypeError(f"`depth` must be {wanted}, found {self.depth!r:.60}")
        self._check_scheme()

    def _check_scheme(self) -> None:
        kind, scheme = self.field.kind, self.scheme
        is_first, form = kind == "first", ProblemForm(kind)
        suits = is_first if scheme is None else (accepts if is_first else moves_parts)(scheme, form)
        if not suits:
            wanted = {
                "first": "a scheme for y' = f(t, y) such as 'euler' or 'rk4'",
                "partitioned": "a splitting scheme such as 'verlet'",
                "second": "a splitting scheme such as 'verlet', or 'leapfrog_two_step'",
            }[kind]
            found = None if scheme is None else scheme.name
            raise ValueError(f"`scheme` for {self.field.name} dynamics must be {wanted}, found {found!r}")
        refusal = (
            None if scheme is None else find_step_choice_refusal(scheme, "and a net takes fixed steps of `scheme`;")
        )
        if refusal is not None:
            raise ValueError(refusal)
        if scheme is not None and needs_second_derivatives(scheme):
            raise ValueError(
                f"`scheme` of a net must not be a Rosenbrock scheme, as gradients need second derivatives of layers; "
                f"use an implicit Runge-Kutta scheme such as 'implicit_euler', found {scheme.name!r}"
            )
        if self.field.diffusion is not None and (scheme is None or has_history(scheme)):
            raise ValueError(f"`scheme` for a field with noise must be a one-step scheme, found {self.scheme_name!r}")
        least = self.scheme_program.opening.steps
        if self.steps < max(1, least):
            raise ValueError(f"`steps` must be at least {least} for {scheme.name}, found {self.steps}")

    @property
    def scheme_program(self) -> SchemeProgram:
        """The step of the scheme as slopes and sums."""
        if self.scheme is None:
            return NO_SKIP
        is_second, diffusion = self.field.kind == "second", self.field.diffusion
        if diffusion is not None and diffusion.scale > 0:  # slopes at the end of a step are not those after its noise
            part = None if diffusion.chain is None else DIFFUSION_PART
            return append_noise(build_held_program(self.scheme, is_second), diffusion.scale, part)
        if isinstance(self.depth, HeldWeights) and self.depth.controls > 1:
            return build_held_program(self.scheme, is_second)
        return build_scheme_program(self.scheme, len(self.field.parts), False, is_second)

    @property
    def scheme_name(self) -> str:
        """The name of the scheme, "no skip" for plain layers."""
        return "no skip" if self.scheme is None else self.scheme.name

    @property
    def h(self) -> float:
        return self.length / self.steps

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of parameters, with control values as the first axis."""
        return {name: (self.depth.controls, *shape) for name, shape in self.field.parameters.items()}

    @property
    def n_in(self) -> int:
        return self.field.width

    n_out = n_in

    @property
    def axes_in(self) -> tuple[int, ...]:
        """The shape of a state, channels first."""
        return self.field.axes

    axes_out = axes_in

    def __repr__(self) -> str:
        weights = ("piecewise constant", "piecewise linear", "quadratic spline", "cubic spline")[self.depth.degree]
        if isinstance(self.depth, HeldWeights):
            weights = "held over each step"
        if self.depth.controls == 1:
            weights = "the same everywhere"
        steps = f"{self.steps} steps of {self.h:.4g}"
        return f"{self.field.name}, {self._formula}, {self.scheme_name}, {steps}, weights {weights}"

    @property
    def _formula(self) -> str:
        chain = self.field.parts[0]
        if self.field.name not in DYNAMICS:
            return describe(chain)
        K, s = chain.layers[0].connectivity, str(chain.activation)
        if any(isinstance(layer.connectivity, Normalisation) for layer in chain.layers):
            s += " of normalised"
        return f"{K.name} {K.n_in} -> {K.n_out}, {s}"


def describe(chain: Chain) -> str:
    """A readable description of a chain, layer by layer."""
    return ", ".join(
        f"{layer.connectivity.name} {layer.n_in} -> {layer.n_out} {layer.activation}" for layer in chain.layers
    )


@dataclass(frozen=True, eq=False)
class Design:
    """Opening layer, blocks joined by chains, and readout; parts that are None are omitted.

    Parameters
    ----------
    blocks : tuple of Block
    opening, readout : Chain, optional
    joins : tuple of Chain, optional
        One between consecutive blocks, for pooling or a change of channels.

    Examples
    --------
    >>> from stepnet import fields, nets
    >>> design = nets.Design((nets.Block(fields.residual(fields.dense(4)), "euler", steps=5),))
    >>> nets.Net(design)([[1.0, 2.0, 3.0, 4.0]]).shape
    (1, 4)
    """

    blocks: tuple[Block, ...]
    opening: Chain | None = None
    readout: Chain | None = None
    joins: tuple[Chain, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", require_all("blocks", self.blocks, Block))
        object.__setattr__(self, "joins", _validate_chains("joins", self.joins))
        for name in ("opening", "readout"):
            if not isinstance(getattr(self, name), (Chain, NoneType)):
                found = getattr(self, name)
                raise TypeError(f"`{name}` must be a Chain such as `fields.affine(K)`, or None, found {found!r:.60}")
        if self.joins and len(self.joins) != len(self.blocks) - 1:
            raise ValueError(f"`joins` must hold {len(self.blocks) - 1} chains, one between every two blocks, "
                             f"found {len(self.joins)}")  # fmt: skip
        stages = list(self.stages())
        for (name, before), (later, after) in pairwise(stages):
            if before.n_out != after.n_in:
                raise ValueError(f"{name} gives {before.n_out} features, but {later} takes {after.n_in}")

    def stages(self) -> Iterator[tuple[str, Chain | Block]]:
        """Names and records of the net stages, in order."""
        if self.opening is not None:
            yield "opening", self.opening
        for i, (block, join) in enumerate(zip_longest(self.blocks, self.joins)):
            yield f"blocks.{i}", block
            if join is not None:
                yield f"joins.{i}", join
        if self.readout is not None:
            yield "readout", self.readout

    @cached_property
    def n_in(self) -> int:
        return next(self.stages())[1].n_in

    @property
    def is_implicit(self) -> bool:
        """Whether some layer solves systems of equations."""
        return any(is_implicit(block.scheme) for block in self.blocks)

    @cached_property
    def n_out(self) -> int:
        return list(self.stages())[-1][1].n_out

    @property
    def axes_in(self) -> tuple[int, ...]:
        """The shape of an input, channels first."""
        return next(self.stages())[1].axes_in

    @property
    def axes_out(self) -> tuple[int, ...]:
        """The shape of an output, channels first."""
        return list(self.stages())[-1][1].axes_out

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names of all parameters and their shapes, in the order of the flat vector."""
        return {
            f"{name}.{each}": shape for name, stage in self.stages() for each, shape in stage.parameters.items()
        }  # fmt: skip


def _validate_chains(name: str, value: Any) -> tuple[Chain, ...]:
    """Return a tuple of chains, possibly empty."""
    return () if isinstance(value, (tuple, list)) and not value else require_all(name, value, Chain)
