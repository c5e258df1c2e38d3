"""Addresses of C functions, and the check of what is accepted as a function."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsIndex

import numpy as np

LEAST_ADDRESS = 4096  # the first page of memory is never mapped, so a smaller number would crash
END_OF_ADDRESSES = 2**64


@dataclass(frozen=True)
class Address:
    """The address of a C function in this process; see `address`.

    It is meaningless in another process, so it can be neither pickled nor stored.

    Parameters
    ----------
    value : int
        The address.

    Examples
    --------
    >>> import stepnet as sn
    >>> sn.address(4096).value
    4096
    """

    value: int

    def __post_init__(self) -> None:
        value = self.value
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"`number` of an address must be a whole number, found {value!r:.60}")
        if not LEAST_ADDRESS <= value < END_OF_ADDRESSES:
            raise ValueError(
                f"`number` of an address must be at least {LEAST_ADDRESS} and less than 2**64, found {value!r:.60}"
            )
        object.__setattr__(self, "value", int(value))

    def __repr__(self) -> str:
        return f"address({self.value:#x})"

    def __copy__(self) -> Address:
        return self

    def __deepcopy__(self, memory: dict[int, Any]) -> Address:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"{self!r} belongs to this process and cannot be pickled; send the source of the function")


def address(number: int) -> Address:
    """Build the address of a C function, which is accepted wherever a function is expected.

    The contents of an address cannot be checked: a wrong one crashes the process.  Keep the owner of the function
    alive.

    Parameters
    ----------
    number : int
        The address of the function in this process, such as `cfunc.address` of Numba or `ctypes.cast(function,
        ctypes.c_void_p).value`.

    Returns
    -------
    Address

    Raises
    ------
    TypeError, ValueError
        If `number` is not a whole number from 4096 to 2**64 - 1.

    Examples
    --------
    >>> import numba, stepnet as sn
    >>> from numba import types
    >>> reals = types.CPointer(types.float64)
    >>> @numba.cfunc(types.int32(types.float64, reals, reals, reals, types.int64))
    ... def decay(t, y, dy, p, n):
    ...     dy[0] = -y[0]
    ...     return 0
    >>> sn.solve(sn.ODE(sn.address(decay.address), [1.0], (0.0, 1.0)), "rk4", steps=10).statistics.rung
    'address'
    """
    return Address(number)


def is_function(value: object) -> bool:
    """Whether a value is accepted as a function: a Python callable or a C function."""
    return callable(value) or isinstance(value, Address) or type(value).__name__ == "LowLevelCallable"


def check_function(name: str, value: object, of: str = "") -> None:
    """Refuse what is not a function; an integer is not an address.  `of` completes the name in the message."""
    if isinstance(value, ctypes._CFuncPtr) and not value:  # type: ignore[attr-defined]
        raise ValueError(f"`{name}`{of} must be a function, found a null pointer")
    if is_function(value):
        return
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        raise TypeError(
            f"`{name}`{of} must be a function, found the number {value!r:.60}; for the address of a C function write "
            f"`stepnet.address(...)`"
        )
    raise TypeError(f"`{name}`{of} must be a function or a C function, found {type(value).__name__}")
