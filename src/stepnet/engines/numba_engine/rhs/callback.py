"""The last rung: the kernel calls back into Python."""

from __future__ import annotations

import ctypes

import numpy as np

SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
)


class Callback:
    """A Python right-hand side behind a C address; an exception is stored in `.exception` and stops the kernel.

    `first` is (t, y, dy) of the trial call.  If the kernel's first evaluation is at the same (t, y), it gets that dy,
    so that the function is not called twice.
    """

    def __init__(self, evaluate, shape_in: tuple[int, ...], shape_out: tuple[int, ...], dtype: np.dtype, first=None):
        self.exception: BaseException | None = None
        self.is_stopped = lambda: False
        self._evaluate, self._shapes, self._dtype = evaluate, (shape_in, shape_out), np.dtype(dtype)
        self._first = first
        self._views: dict[tuple[int, bool], np.ndarray] = {}
        self.function = SIGNATURE(self._call)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value

    def forget_trial(self) -> None:
        """Call the function also where the trial call was."""
        self._first = None

    def _call(self, t, y, dy, p, n):
        try:
            if self.is_stopped():
                return 2
            first, self._first = self._first, None
            if first is not None and t == first[0] and np.array_equal(self._view(y, False), first[1]):
                self._view(dy, True)[...] = first[2]
                return 0
            state = self._view(y, False).copy()  # the memory is reused, and a function may keep its argument
            state.flags.writeable = False
            self._evaluate(t, state, self._view(dy, True))
        except BaseException as exception:  # ctypes would print and ignore it, even a KeyboardInterrupt
            self.exception = exception
            return 1
        return 0

    def _view(self, address: int, is_writeable: bool) -> np.ndarray:
        """The array at an address, cached because a solve uses only a few."""
        view = self._views.get((address, is_writeable))
        if view is None:
            shape = self._shapes[is_writeable]
            size = int(np.prod(shape)) * self._dtype.itemsize
            memory = (ctypes.c_char * size).from_address(address or 1)
            view = np.empty(shape, self._dtype)
            if size:
                view = np.frombuffer(memory, self._dtype).reshape(shape)  # type: ignore[call-overload]
            view.flags.writeable = is_writeable
            self._views[address, is_writeable] = view
        return view
