"""Facts about the compiler for the rest of the engine: its function types, and the CPU it compiles for."""

from __future__ import annotations

import llvmlite.binding as llvm
from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher

__all__ = ["CFunc", "Dispatcher", "find_cpu_features", "find_cpu_name"]


def find_cpu_name() -> str:
    """LLVM's name of this CPU."""
    return str(llvm.get_host_cpu_name())


def find_cpu_features() -> dict[str, bool]:
    """The instruction sets that LLVM knows, and whether this CPU supports them."""
    return dict(llvm.get_host_cpu_features())
