"""Packing the extra arguments of a right-hand side into one flat float64 block, and unpacking."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stepnet.engines.numba_engine.tracing.function_key import find_value_key


class ArgumentSlot(NamedTuple):
    """The position of one argument in the block: `kind` is float, int, bool, complex, array or constant.

    A constant (text, an integer array, a function) is not in the block; it is frozen into compiled code, whose key
    includes it (`function_key`).  `key` distinguishes numbers that are treated as constants.
    """

    kind: str
    offset: int
    shape: tuple[int, ...] = ()
    is_complex: bool = False
    key: object = None

    @property
    def is_real(self) -> bool:
        """Whether it is a float or an array of floats."""
        return self.kind == "float" or (self.kind == "array" and not self.is_complex)

    def expression(self) -> str:
        """Source text that reads the argument from the block `p`, with its original type."""
        k = self.offset
        if self.kind == "constant":
            return f"constants_{k}"
        if self.kind == "array":
            length = int(np.prod(self.shape)) * (2 if self.is_complex else 1)
            view = f"p[{k}:{k + length}]" + (".view(complex128)" if self.is_complex else "")
            return view if len(self.shape) == 1 else f"{view}.reshape({self.shape})"
        return {
            "float": f"p[{k}]",
            "int": f"int64(p[{k}])",
            "bool": f"p[{k}] != 0.0",
            "complex": f"complex(p[{k}], p[{k + 1}])",
        }[self.kind]


class ArgumentBlock(NamedTuple):
    """All arguments packed: `values` for the kernels, `slots` to unpack them in compiled code, `args` as given."""

    values: np.ndarray
    slots: tuple[ArgumentSlot, ...]
    args: tuple

    @property
    def is_numeric(self) -> bool:
        """Whether every argument is in `values`."""
        return all(slot.kind != "constant" for slot in self.slots)

    @property
    def constants(self) -> tuple:
        """The arguments that are not in `values`."""
        return tuple([self.args[slot.offset] for slot in self.slots if slot.kind == "constant"])

    @property
    def frozen(self):
        """Further values that a trace depends on: integers and booleans, which may control its loops."""
        return tuple(self.values[slot.offset] for slot in self.slots if slot.kind in ("int", "bool"))


def pack(args: tuple) -> ArgumentBlock:
    """Pack numbers and arrays of floats; everything else becomes a constant."""
    if {*map(type, args)} <= {float}:
        return ArgumentBlock(np.array(args, float), _list_float_slots(len(args)), args)
    pieces: list[Sequence[float] | np.ndarray] = []
    slots: list[ArgumentSlot] = []
    offset = 0
    for i, value in enumerate(args):
        slot, piece = _find_slot(value, offset)
        if slot is None:
            slot, piece = ArgumentSlot("constant", i), ()
        slots.append(slot)
        pieces.append(piece)
        offset += len(piece)
    return ArgumentBlock(np.concatenate(pieces), tuple(slots), args)


@lru_cache(maxsize=64)
def _list_float_slots(n: int) -> tuple[ArgumentSlot, ...]:
    """The slots of n scalars, the most frequent case."""
    return tuple(ArgumentSlot("float", i) for i in range(n))


def as_inputs(block: ArgumentBlock) -> ArgumentBlock:
    """The same arguments for a function of the floats among them: integers and complex numbers become constants."""
    slots = (
        slot if slot.is_real or slot.kind == "constant" else ArgumentSlot("constant", i, key=find_value_key(value))
        for i, (slot, value) in enumerate(zip(block.slots, block.args, strict=True))
    )
    return block._replace(slots=tuple(slots))


def are_floats(block: ArgumentBlock) -> np.ndarray:
    """Which numbers of the block are floats, with respect to which derivatives exist."""
    flags = np.zeros(block.values.size, bool)
    for slot in block.slots:
        if slot.is_real:
            flags[slot.offset : slot.offset + int(np.prod(slot.shape))] = True
    return flags


def replace_values(block: ArgumentBlock, values: np.ndarray) -> tuple:
    """The arguments with the floats among them replaced."""
    moved = unpack(values, block.slots)
    return tuple(old if new is None else new for old, new in zip(block.args, moved, strict=True))


def unpack(values: np.ndarray, slots: tuple[ArgumentSlot, ...]) -> tuple:
    """Numbers of a block, such as gradients, in the shapes of the arguments; None for arguments that are not floats."""
    found: list = []
    for slot in slots:
        size = int(np.prod(slot.shape))
        if slot.kind == "float":
            found.append(float(values[slot.offset]))
        elif slot.kind == "array" and not slot.is_complex:
            found.append(values[slot.offset : slot.offset + size].reshape(slot.shape))
        else:
            found.append(None)
    return tuple(found)


def flat_gradients(found: tuple, args: tuple) -> np.ndarray:
    """Gradients in the shapes of the arguments as one block; NaN where there is no derivative (None)."""
    slots = pack(args).slots
    sizes = [int(np.prod(slot.shape)) * (2 if slot.kind == "complex" or slot.is_complex else 1) for slot in slots]
    pieces = [
        np.full(size, np.nan) if value is None else np.ravel(value)
        for value, slot, size in zip(found, slots, sizes, strict=True)
        if slot.kind != "constant"
    ]
    return np.concatenate([np.zeros(0), *pieces])


def _find_slot(value, offset: int):
    """The slot of an argument and its numbers, or (None, None) for a constant."""
    if isinstance(value, (bool, np.bool_)):
        return ArgumentSlot("bool", offset), (float(value),)
    if isinstance(value, (int, np.integer)) and abs(int(value)) <= 2**53:
        return ArgumentSlot("int", offset), (float(value),)
    if isinstance(value, (float, np.floating)):
        return ArgumentSlot("float", offset), (float(value),)
    if isinstance(value, (complex, np.complexfloating)):
        return ArgumentSlot("complex", offset), (float(value.real), float(value.imag))
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim > 0:
        return ArgumentSlot("array", offset, value.shape), value.astype(np.float64).ravel()
    if isinstance(value, np.ndarray) and value.dtype.kind == "c" and value.ndim > 0:
        return ArgumentSlot("array", offset, value.shape, True), value.astype(np.complex128).ravel().view(float)
    return None, None


def as_arguments(p: np.ndarray, args: tuple, is_known: bool = True) -> tuple:
    """Numbers of a parameter block in the shapes of the arguments; None where they are unknown or not floats."""
    return unpack(p, pack(args).slots) if is_known else (None,) * len(args)


def as_argument_rows(p: np.ndarray, args: tuple, is_known: bool = True) -> tuple:
    """The same for an array whose last axis is that of the parameter block."""
    places = as_arguments(np.arange(p.shape[-1], dtype=float), args, is_known)
    return tuple(None if each is None else p[..., np.asarray(each, np.int64)] for each in places)


def as_block(direction, args: tuple) -> np.ndarray:
    """A direction in the space of the arguments, given in their shapes (or None for zero), as a flat block."""
    block = pack(args)
    values = np.zeros(block.values.size)
    for i, (slot, given) in enumerate(zip(block.slots, direction, strict=True)):
        if given is not None and not slot.is_real and np.any(given):
            raise ValueError(
                f"`args[{i}]` = {args[i]!r:.60} is not a real number, or is used as an index or a count, so the end "
                f"state has no derivative with respect to it; give None as its direction"
            )
        if given is not None and slot.is_real:
            size, found = int(np.prod(slot.shape)), np.shape(given)
            if found != slot.shape:
                raise ValueError(f"`args` must be directions shaped as the arguments: {slot.shape}, found {found}")
            values[slot.offset : slot.offset + size] = np.ravel(given)
    return values
