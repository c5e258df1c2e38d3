"""A net: a design and its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stepnet.checkpoints.budget import LAYER_MEMORIES, Memory, require_undoable, validate_memory
from stepnet.fields.connectivity import count
from stepnet.nets.derivatives import Linearised, NetGradient, view_by_name
from stepnet.nets.design import Block, Design, describe
from stepnet.nets.initialisation import draw_initial_weights
from stepnet.nets.layout import Layout, validate_layout
from stepnet.nets.sample_noise import SampleNoise, validate_noise
from stepnet.nets.validation import (
    evaluate_loss,
    require_function,
    validate_batch,
    validate_parameter_shape,
    validate_real_array,
    validate_shape,
    validate_workers,
)
from stepnet.records import explain_arguments, validate_count

if TYPE_CHECKING:
    from os import PathLike

    from numpy.typing import ArrayLike, DTypeLike

    from stepnet.nets.execution import Execution
    from stepnet.problem import ODE, Partitioned, SecondOrder

MOST_PARAMETERS = 2**31  # 16 GiB in double precision


@explain_arguments()
class Net:
    """A design with weights: `net(x)` maps inputs `(batch, ...)` to outputs `(batch, outputs)`.

    Inputs of several axes must have the shape of the layout, (batch, *net.input_shape), or be that array flattened:
    images are (batch, channels, height, width), graphs, sets and sequences (batch, channels, nodes).  A single channel
    may be left out.  Outputs are flat, in the order of the layout.

    Parameters
    ----------
    design : Design
    theta : array, optional
        All parameters in one flat vector, in the order of `design.shapes`; drawn at random by default.
    seed : int or None
        Seed of the random weights, drawn by `numpy.random.default_rng(seed)`: nets of equal design and seed have the
        same weights.  The default is 0; None draws different weights each time.
    initialisation : str
        "glorot", "lecun", "he", "orthogonal" or "stable".
    dtype : float64 or float32
    workers : int, optional
        Threads, by default one per core.  Results do not depend on it.
    memory : "auto", "all", "segments", "reversible" or Checkpoints
        The memory policy of gradients, also in training; see `gradient`.
    layout : "channels_first" or "channels_last"
        The channel axis of inputs and outputs with several axes.  States (`features`, `problem`) are flat, channel by
        channel, in both layouts.

    Examples
    --------
    >>> from stepnet import nets
    >>> net = nets.hamiltonian(2, 3, width=4, steps=5)
    >>> net([[1.0, 2.0], [3.0, 4.0]]).shape
    (2, 3)
    """

    def __init__(
        self, design: Design, theta: ArrayLike | None = None, *, seed: int | None = 0, initialisation: str = "glorot",
        dtype: DTypeLike = np.float64, workers: int | None = None, memory: Memory = "auto",
        layout: str = "channels_first",
    ) -> None:  # fmt: skip
        if not isinstance(design, Design):
            raise TypeError(f"`design` must be a Design, found {type(design).__name__}")
        self.design, self.dtype = design, _validate_dtype(dtype)
        self.workers, self.memory = validate_workers(workers), self._validate_memory(memory)
        self.layout = validate_layout(layout)
        n_parameters = _count_parameters(design)
        if theta is None:
            theta = draw_initial_weights(design, initialisation, seed)
        self.theta = np.zeros(n_parameters, self.dtype)
        self.put(theta)

    def put(self, theta: ArrayLike) -> None:
        """Replace all parameters."""
        theta = validate_real_array("theta", theta, self.dtype)
        if theta.shape != self.theta.shape:
            raise ValueError(f"`theta` must have the shape {self.theta.shape}, found {theta.shape}")
        self.theta[:] = theta

    @property
    def weights(self) -> MappingProxyType[str, np.ndarray]:
        """Views of the parameters by name: opening.K, blocks.0.K (steps, out, in), blocks.0.b, readout.W, ..."""
        return self.views(self.theta)

    def views(self, theta: np.ndarray) -> MappingProxyType[str, np.ndarray]:
        """Views by the same names of any vector of the same length."""
        return view_by_name(self.design, validate_parameter_shape("theta", theta, self.theta.shape))

    @cached_property
    def _execution(self) -> Execution:
        from stepnet.nets.execution import Execution

        return Execution(self.design, self.dtype, self.workers)

    def __getstate__(self) -> dict[str, Any]:
        """The state to copy or pickle, without the workspace, which is built again when needed."""
        return {name: value for name, value in self.__dict__.items() if name != "_execution"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copy the weights, because `joblib.load(mmap_mode="r")` returns read-only arrays."""
        self.__dict__.update(state, theta=np.array(state["theta"]))

    @cached_property
    def has_noise(self) -> bool:
        """Whether outputs depend on Brownian paths."""
        return any(block.scheme_program.step.noise for block in self.design.blocks)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a sample in the layout of the net."""
        return self._layout_in.shape

    @cached_property
    def _layout_in(self) -> Layout:
        return Layout(self.design.axes_in, self.layout)

    @cached_property
    def _layout_out(self) -> Layout:
        return Layout(self.design.axes_out, self.layout)

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def __call__(self, x: ArrayLike, *, noise: SampleNoise | None = None) -> np.ndarray:
        """Outputs of a batch of inputs, for one Brownian path of each sample if the net has diffusion."""
        flat = self._inputs("x", x)
        return self._layout_out.restore(self._execution.forward(self.theta, flat, validate_noise(noise)))

    forward = __call__

    def features(self, x: ArrayLike, block: int = 0, *, noise: SampleNoise | None = None) -> np.ndarray:
        """States `(depths, batch, width)` inside a block, from its first to its last."""
        number, record = self._block(block)
        flat = self._inputs("x", x)
        found = self._execution.features(self.theta, flat, number, validate_noise(noise))
        if not record.scheme_program.opening.steps:
            return found
        # The first states of a multistep scheme come from its starting procedure.
        starting = Block(record.field, record.scheme.starter, record.steps, record.length, record.depth)
        early = _replace_block(self, block, starting).features(x, block)[: record.scheme_program.opening.steps]
        return np.concatenate((early, found))

    def gradient(
        self, x: ArrayLike, loss: Callable[..., Any] | None = None, *, end_gradient: ArrayLike | None = None,
        memory: Memory | None = None, noise: SampleNoise | None = None,
    ) -> NetGradient:  # fmt: skip
        """The exact gradient of a loss of the outputs.

        Parameters
        ----------
        x : array_like
            Inputs `(batch, ...)`.
        loss : callable
            `loss(outputs)` returns (value, gradient with respect to the outputs).
        end_gradient : array_like, instead of `loss`
            The gradient of the loss with respect to the outputs.
        memory : "auto", "all", "segments", "reversible" or Checkpoints, instead of that of the net
            What is stored in the forward run: everything; a state every few steps; nothing, as states are reconstructed
            (Verlet, leapfrog and similar schemes); or the states of an optimal schedule.
        noise : SampleNoise, optional
            The Brownian paths of the samples, if the net has diffusion; they are drawn again in the reverse sweep.
        """
        if (loss is None) == (end_gradient is None):
            raise TypeError("give either `loss` or `end_gradient`")
        if end_gradient is None:
            require_function(loss)
        return self._pull_back(x, loss, end_gradient, memory, True, validate_noise(noise))

    def parameter_gradient(
        self, x: ArrayLike, loss: Callable[..., Any], *, noise: SampleNoise | None = None
    ) -> NetGradient:
        """As `gradient`, without the gradient with respect to the inputs, which training does not need."""
        require_function(loss)
        return self._pull_back(x, loss, None, None, False, validate_noise(noise))

    def _pull_back(
        self, x: ArrayLike, loss: Callable[..., Any] | None, end_gradient: ArrayLike | None, memory: Memory | None,
        is_x_wanted: bool, noise: SampleNoise | None,
    ) -> NetGradient:  # fmt: skip
        flat, value, outputs = self._inputs("x", x), float("nan"), np.zeros(0)

        def seed(y: np.ndarray) -> np.ndarray:
            nonlocal outputs, value
            outputs = self._layout_out.restore(y)
            if loss is None:
                y_bar = validate_shape("end_gradient", end_gradient, y.shape, "the outputs", self.dtype)
            else:
                value, y_bar = evaluate_loss(loss, outputs)
            return self._layout_out.flatten(y_bar)

        theta_bar, x_bar = self._execution.gradient(self.theta, flat, seed, self._memory(memory), is_x_wanted, noise)
        x_bar = self._layout_in.restore(cast(np.ndarray, x_bar), np.shape(x)) if is_x_wanted else None
        return NetGradient(float(value), theta_bar, x_bar, outputs, self.design)

    def tangent(
        self, x: ArrayLike, theta_dot: ArrayLike | None = None, x_dot: ArrayLike | None = None, *,
        noise: SampleNoise | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Outputs and their derivative along a direction of parameters and inputs."""
        flat, theta = self._inputs("x", x), self.theta
        if theta_dot is None:
            theta_dot = np.zeros_like(theta)
        if x_dot is None:
            x_dot = np.zeros_like(flat)
        x_dot = validate_real_array("x_dot", x_dot, self.dtype)
        given = flat.shape if x_dot.shape == flat.shape else np.shape(x)
        theta_dot = validate_shape("theta_dot", theta_dot, theta.shape, "the parameters", self.dtype)
        x_dot = self._layout_in.flatten(validate_shape("x_dot", x_dot, given, "`x`", self.dtype))
        y, y_dot = self._execution.tangent(theta, theta_dot, flat, x_dot, validate_noise(noise))
        return self._layout_out.restore(y), self._layout_out.restore(y_dot)

    def gauss_newton(
        self, x: ArrayLike, direction: ArrayLike, hessian: Callable[..., Any] | None = None, *,
        memory: Memory | None = None, noise: SampleNoise | None = None,
    ) -> np.ndarray:  # fmt: skip
        """J' H J times a direction of parameters; `hessian(J v)` is H (J v) in the space of outputs, by default J v."""
        return self.linearise(x, memory=memory, noise=noise).gauss_newton(direction, hessian)

    def linearise(self, x: ArrayLike, *, memory: Memory | None = None, noise: SampleNoise | None = None) -> Linearised:
        """The outputs linearised at the current parameters; one run serves many derivatives.

        The run is stored if `memory` is "all", or "auto" and small enough; otherwise each derivative runs the net
        again.
        """
        theta, flat, memory = self.theta.copy(), self._inputs("x", x), self._memory(memory)
        noise = validate_noise(noise)
        execution, layout = self._execution, self._layout_out
        if execution.can_be_kept(len(flat), memory):
            outputs, push, pull = execution.linearise(theta, flat, noise)
        else:
            outputs, zeros = execution.forward(theta, flat, noise), np.zeros_like(flat)
            push = lambda theta_dot: execution.tangent(theta, theta_dot, flat, zeros, noise)[1]
            pull = lambda bar: execution.gradient(theta, flat, lambda _: bar, memory, True, noise)[0]
        return Linearised(
            theta.size,
            layout.restore(outputs),
            lambda theta_dot: layout.restore(push(theta_dot)),
            lambda outputs_bar: pull(layout.flatten(outputs_bar)),
        )

    def roughness(self) -> tuple[float, np.ndarray]:
        """1/2 int |d theta / dt|^2 over all blocks, and its gradient: a penalty on variation in depth."""
        total, gradient = 0.0, np.zeros_like(self.theta)
        views, bars = self.weights, self.views(gradient)
        for i, block in enumerate(self.design.blocks):
            for name in block.parameters:
                value, bar = block.depth.roughness(views[f"blocks.{i}.{name}"], block.length)
                total += value
                bars[f"blocks.{i}.{name}"][...] = bar
        return total, gradient

    def astype(self, dtype: DTypeLike) -> Net:
        """A copy of the net in another precision."""
        return Net(self.design, self.theta, dtype=dtype, **self._how)

    def refine(self, factor: int = 2) -> Net:
        """The same function of depth on `factor` times as many steps."""
        factor, blocks = count("factor", factor), []
        for block in self.design.blocks:
            depth = block.depth
            if depth.controls > 1:
                depth = replace(depth, controls=(depth.controls - depth.degree) * factor + depth.degree)
            blocks.append(Block(block.field, block.scheme, block.steps * factor, block.length, depth))
        design = Design(tuple(blocks), self.design.opening, self.design.readout, self.design.joins)
        zeros = np.zeros(_count_parameters(design))
        net = Net(design, zeros, dtype=self.dtype, **self._how)
        for name, old in self.weights.items():
            new = net.weights[name]
            if name.startswith("blocks.") and new.shape != old.shape:
                i = int(name.split(".")[1])
                new[...] = self.design.blocks[i].depth.refine(old, blocks[i].depth)  # type: ignore[arg-type] # one kind
            else:
                new[...] = old
        return net

    def problem(self, x: ArrayLike, block: int = 0) -> ODE | Partitioned | SecondOrder:
        """A block as a problem whose initial state `(width, batch)` is that of the block for these inputs.

        It has the current weights.  An ODE includes its Jacobian products; problems with a partitioned state do not.
        """
        from stepnet.nets.block_problems import build_problem

        number, record = self._block(block)
        if record.scheme is None:
            raise ValueError(
                f"`block` {block} has no scheme: layers without a skip connection are not steps of a problem"
            )
        if record.scheme_program.step.noise:
            raise ValueError(f"`block` {block} has noise, and its problem would have none")
        start = self._execution.run_to_stage(self.theta, self._inputs("x", x), number)
        names = {name: self.weights[f"blocks.{block}.{name}"].copy() for name in record.parameters}
        return build_problem(record, names, np.ascontiguousarray(start.T))

    # ---- files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write weights and design into one safetensors file; the design is JSON in its header."""
        from stepnet.nets.files import write

        write(path, self)

    @staticmethod
    def load(path: str | PathLike[str]) -> Net:
        """Read a net written by `save`, with bitwise equal numbers.

        Parameters
        ----------
        path : str or path
            A file written by `Net.save`.

        Returns
        -------
        Net

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from stepnet import nets
        >>> net, path = nets.resnet(2, 1, width=3, steps=4), pathlib.Path(tempfile.mkdtemp(), "net.safetensors")
        >>> net.save(path)
        >>> bool((nets.load(path).theta == net.theta).all())
        True
        """
        from stepnet.nets.files import read

        return read(path)

    @property
    def identity(self) -> str:
        """A hash that identifies the design and precision of the net."""
        from stepnet.nets.files import fingerprint

        return fingerprint(self)

    def __repr__(self) -> str:
        lines = [f"Net: {self.design.n_in} -> {self.design.n_out}, {self.theta.size} parameters, {self.dtype}"]
        for name, stage in self.design.stages():
            size = sum(int(np.prod(shape)) for shape in stage.parameters.values())
            text = repr(stage) if isinstance(stage, Block) else describe(stage)
            lines.append(f"  {name}: {text} ({size})")
        return "\n".join(lines)

    # ---- validation -------------------------------------------------------------------------------------------------

    def _inputs(self, name: str, x: ArrayLike) -> np.ndarray:
        return validate_batch(name, x, self._layout_in, self.dtype)

    @property
    def _how(self) -> dict[str, Any]:
        """The options that nets derived from this one inherit."""
        return {"workers": self.workers, "memory": self.memory, "layout": self.layout}

    def _block(self, block: int) -> tuple[int, Block]:
        """The index of a block among the stages, and the block."""
        n = len(self.design.blocks)
        try:
            block = validate_count("block", block, 0, n - 1)
        except (TypeError, ValueError):
            raise ValueError(f"`block` must be a number below {n}, found {block!r}") from None
        names = [name for name, _ in self.design.stages()]
        return names.index(f"blocks.{block}"), self.design.blocks[block]

    def _memory(self, memory: Memory | None) -> Memory:
        return self.memory if memory is None else self._validate_memory(memory)

    def _validate_memory(self, memory: Memory) -> Memory:
        memory = validate_memory(memory, LAYER_MEMORIES)
        if memory == "reversible":
            for block in self.design.blocks:
                require_undoable(block.scheme_program.back is not None, block.scheme_name)
        return memory


def _replace_block(net: Net, number: int, block: Block) -> Net:
    blocks = tuple(block if i == number else each for i, each in enumerate(net.design.blocks))
    design = Design(blocks, net.design.opening, net.design.readout, net.design.joins)
    return Net(design, net.theta, dtype=net.dtype, **net._how)


def _validate_dtype(value: DTypeLike) -> np.dtype:
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError):
        raise TypeError(f"`dtype` must be float64 or float32, found {value!r:.60}") from None
    if dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise TypeError(f"`dtype` must be float64 or float32, found {dtype}")
    return dtype


def _count_parameters(design: Design) -> int:
    """The number of parameters; refuse a net whose parameters do not fit into memory."""
    found = sum(prod(shape) for shape in design.shapes.values())
    if found > MOST_PARAMETERS:
        raise MemoryError(
            f"the net would have {found:.3g} parameters, more than {MOST_PARAMETERS:.3g}; choose fewer `steps`, fewer "
            f"`controls` over depth or a smaller `width`"
        )
    return found
