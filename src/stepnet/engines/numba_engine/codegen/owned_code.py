"""Machine code of Numba that is freed with the object that owns it.

Numba puts all machine code into one engine, which never frees any of it.  Here every code library has its own engine,
created when an address in it is first requested: code lives as long as its library, and functions that are only inlined
into others are never translated.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager

import llvmlite.binding as llvm
from numba.core import config
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen, JitEngine, RuntimeLinker
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import Environment
from numba.core.registry import cpu_target

from stepnet.engines.numba_engine.codegen.machine_code import load_object


class OwnedLibrary(JITCodeLibrary):
    """A library that owns its machine code."""

    machine_code: tuple | None = None  # an engine, and the objects that its code refers to

    def get_pointer_to_function(self, name: str) -> int:
        """The address of a function of this library, or 0 if there is none of this name."""
        self._ensure_finalized()
        if not any(function.name == name for function in self.get_defined_functions()):
            return 0
        if self.machine_code is None:
            self.machine_code = self._make_machine_code()
        return self.machine_code[0].get_function_address(name)

    def _finalize_specific(self) -> None:
        """Do nothing: machine code is generated on request."""

    def _make_machine_code(self) -> tuple:
        module = self._final_module
        if any(variable.name.startswith(RuntimeLinker.PREFIX) for variable in module.global_variables):
            engine, linker = self._link_recursion()
        else:
            machine = self._codegen.create_machine()
            engine, linker = load_object(machine.emit_object(module), machine), None
        return engine, linker, self._set_environments(engine)

    def _link_recursion(self) -> tuple[JitEngine, RuntimeLinker]:
        """The code of functions that call themselves through pointers, which are set once the code exists."""
        empty = llvm.parse_assembly(str(self._codegen._create_empty_module("empty")))
        engine, linker = JitEngine(llvm.create_mcjit_compiler(empty, self._codegen.create_machine())), RuntimeLinker()
        engine.add_module(self._final_module)
        linker.scan_unresolved_symbols(self._final_module, engine)
        linker.scan_defined_symbols(self._final_module)
        linker.resolve(engine)
        engine.finalize_object()
        return engine, linker

    def _set_environments(self, engine) -> list[Environment]:
        """Set each function's pointer to its globals and constants, which the owner of the code must keep alive."""
        found = []
        for variable in self._final_module.global_variables:
            environment = Environment._memo.get(variable.name)
            if environment is not None and not variable.is_declaration:
                place = (ctypes.c_void_p * 1).from_address(engine.get_global_value_address(variable.name))
                place[0] = ctypes.c_void_p(id(environment))
                found.append(environment)
        return found


class OwnedCodegen(JITCPUCodegen):
    """Numba's code generator, except for where the code is placed."""

    _library_class = OwnedLibrary

    def __init__(self, original: JITCPUCodegen):
        self.__dict__.update(original.__dict__)

    def create_machine(self):
        """The target machine for which Numba generates code."""
        options = {"opt": config.OPT}
        self._customize_tm_options(options)
        return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(**options)

    def _add_module(self, module) -> None:
        """Do nothing: a module is added to the engine of its library."""

    def set_env(self, env_name: str, env) -> None:
        """Do nothing: environments are set when machine code is generated."""


@contextmanager
def own_code():
    """Code that Numba compiles in this context is owned by its library."""
    with global_compiler_lock:
        context = cpu_target.target_context
        original = context._internal_codegen
        if not isinstance(original, OwnedCodegen):
            context._internal_codegen = OwnedCodegen(original)
        try:
            yield
        finally:
            context._internal_codegen = original
