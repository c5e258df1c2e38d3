"""Straight-line machine code from a trace, by LLVM without Numba: milliseconds for a small system.

int32 f  (double t, const double *y, double *dy, const double *p, int64 n)
int32 jvp(double t, const double *y, const double *p, double t_dot, const double *y_dot, const double *p_dot,
          double *out, int64 n)
int32 vjp(double t, const double *y, const double *p, const double *w, double *t_bar, double *y_bar, double *p_bar,
          int64 n)                                      (the bars are added to)
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import newpassmanagers
from llvmlite.binding.ffi import ObjectRef

from stepnet.engines.numba_engine.codegen import disk_cache
from stepnet.engines.numba_engine.tracing.graph import BINARY
from stepnet.engines.numba_engine.tracing.trace import Trace

INSTRUCTION = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
COMPARISON = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
LIBM = {
    "sin": "sin", "cos": "cos", "tan": "tan", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "exp": "exp",
    "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p", "cbrt": "cbrt",
    "erf": "erf", "erfc": "erfc", "sqrt": "llvm.sqrt.f64", "abs": "llvm.fabs.f64", "floor": "llvm.floor.f64",
    "ceil": "llvm.ceil.f64", "pow": "pow", "arctan2": "atan2", "hypot": "hypot",
    "fmod": "fmod", "copysign": "llvm.copysign.f64",
}  # fmt: skip
HEAD = {
    "f": "double %t, ptr noalias readonly %y, ptr noalias %dy, ptr noalias readonly %p, i64 %n",
    "jvp": "double %t, ptr noalias readonly %y, ptr noalias readonly %p, double %t_dot, ptr noalias readonly %y_dot, "
    "ptr noalias readonly %p_dot, ptr noalias %out, i64 %n",
    "vjp": "double %t, ptr noalias readonly %y, ptr noalias readonly %p, ptr noalias readonly %w, ptr noalias %t_bar, "
    "ptr noalias %y_bar, ptr noalias %p_bar, i64 %n",
}
ARRAYS = frozenset(("y", "p", "w", "y_dot", "p_dot", "table", "kept", "kept_dot", "kept_bar"))
HAS_WIDE_REGISTERS = bool(llvm.get_host_cpu_features().get("avx512f"))  # of 512 bits
LONG = 2000  # lines of code from which the object is stored on disk
LANES = 16  # values side by side: two AVX-512 registers, so that two instructions are in flight


class AssemblyWriter:
    """Writes LLVM assembly of one function, for single values or for `lanes` values side by side."""

    def __init__(self, is_wide: bool = False, lanes: int = LANES):
        self.is_wide, self.lanes = is_wide, lanes
        self.real, self.truth = (f"<{lanes} x double>", f"<{lanes} x i1>") if is_wide else ("double", "i1")
        self.lines: list[str] = []
        self._count = 0

    def skip_names(self, other: AssemblyWriter) -> None:
        """Write no name of another writer of the same function."""
        self._count = max(self._count, other._count)

    def compute(self, graph, outputs, names: dict[int, str] | None = None) -> list[str]:
        """Write the operations that outputs need and return their values; `names` holds the values of some nodes."""
        names = {} if names is None else dict(names)
        products = find_products_to_fuse(graph, outputs)
        absorbed = set(products.values())
        for number in graph.live(outputs):
            if number in names or number in absorbed:
                continue
            operation, *operands = graph.nodes[number]
            if number in products:
                names[number] = self._write_fused(graph, number, products[number], names)
            else:
                inputs = [names[operand] for operand in graph.operands(number)]
                names[number] = self._write(operation, operands, inputs)
        return [names[number] for number in outputs]

    def multiply_add(self, x: str, y: str, z: str) -> str:
        """x y + z, rounded once where the processor supports it."""
        return self.call("llvm.fmuladd.f64", x, y, z)

    def negative(self, x: str) -> str:
        return self.line(f"fneg {self.real} {x}")

    def do(self, instruction: str, x: str, y: str) -> str:
        """An instruction with two operands, such as fadd."""
        return self.line(f"{instruction} {self.real} {x}, {y}")

    def compare(self, how: str, x: str, y: str) -> str:
        return self.line(f"fcmp {how} {self.real} {x}, {y}")

    def select(self, condition: str, x: str, y: str) -> str:
        """x where the condition holds, else y."""
        return self.line(f"select {self.truth} {condition}, {self.real} {x}, {self.real} {y}")

    def call(self, symbol: str, *x: str) -> str:
        """Call a function of libm or LLVM; its vector version is named after it."""
        if self.is_wide:
            symbol = symbol.replace(".f64", f".v{self.lanes}f64") if symbol.startswith("llvm.") else f"lanes.{symbol}"
        arguments = ", ".join(f"{self.real} {value}" for value in x)
        return self.line(f"call {self.real} @{symbol}({arguments})")

    def literal(self, value) -> str:
        """A constant, in every lane."""
        return (
            spread(format_literal(value), "i1" if isinstance(value, bool) else "double", self.lanes)
            if self.is_wide
            else format_literal(value)
        )

    def _write_fused(self, graph, number: int, product: int, names: dict[int, str]) -> str:
        """Write the sum or difference `number`, fused with its operand `product`."""
        operation, first, second = graph.nodes[number]
        x, y = (names[factor] for factor in graph.operands(product))
        z = names[second if product == first else first]
        if operation == "sub" and product == first:
            z = self.negative(z)
        elif operation == "sub":
            x = self.negative(x)
        return self.multiply_add(x, y, z)

    def line(self, text: str) -> str:
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def at(self, array: str, index) -> str:
        """A pointer to an entry."""
        return self.line(f"getelementptr {self.real}, ptr %{array}, i64 {index}")

    def load(self, array: str, index) -> str:
        return self.line(f"load {self.real}, ptr {self.at(array, index)}, align 8")

    def store(self, value: str, array: str, index, is_sum: bool = False) -> None:
        if is_sum:
            value = self.do("fadd", self.load(array, index), value)
        self.lines.append(f"store {self.real} {value}, ptr {self.at(array, index)}, align 8")

    def _write(self, operation: str, operands: list, x: list[str]) -> str:
        if operation == "const":
            return self.literal(operands[0])
        if operation in ("t", "t_dot"):
            return f"%{operation}"
        if operation in ARRAYS:
            return self.load(operation, operands[0])
        if operation in INSTRUCTION:
            return self.do(INSTRUCTION[operation], *x)
        if operation == "neg":
            return self.negative(x[0])
        if operation == "fmod":
            return self._write_fmod(*x)
        if operation in LIBM:
            return self.call(LIBM[operation], *x)
        if operation in COMPARISON:
            return self.compare(COMPARISON[operation], *x)
        if operation in ("and", "or"):
            return self.line(f"{operation} {self.truth} {x[0]}, {x[1]}")
        if operation == "not":
            return self.line(f"xor {self.truth} {x[0]}, {self.literal(True)}")
        if operation == "select":
            return self.select(*x)
        return getattr(self, f"_write_{operation}")(*x)

    def _write_fmod(self, x, y) -> str:
        """fmod, with NaN handled separately: LLVM folds fmod of a constant NaN to an undefined value."""
        rest = self.call(LIBM["fmod"], x, y)
        return self.select(self.compare("uno", x, y), self.do("fadd", x, y), rest)

    def _write_max(self, x, y) -> str:
        """The maximum; NaN if either operand is NaN, as in NumPy."""
        return self._or_nan(self.select(self.compare("uge", x, y), x, y), y)

    def _write_min(self, x, y) -> str:
        return self._or_nan(self.select(self.compare("ule", x, y), x, y), y)

    def _or_nan(self, value, y) -> str:
        return self.select(self.compare("uno", y, y), y, value)

    def _write_sign(self, x) -> str:
        zero = self.literal(0.0)
        rest = self.select(self.compare("olt", x, zero), self.literal(-1.0), x)  # zero and NaN are kept
        return self.select(self.compare("ogt", x, zero), self.literal(1.0), rest)


def find_products_to_fuse(graph, outputs) -> dict[int, int]:
    """The product that each sum is fused with, for one rounding instead of two: its first operand used nowhere else."""
    live = graph.live(outputs)
    uses = Counter(outputs)
    for number in live:
        uses.update(graph.operands(number))
    products = {}
    for number in live:
        operation, *operands = graph.nodes[number]
        if operation in ("add", "sub"):
            for operand in operands:
                if graph.nodes[operand][0] == "mul" and uses[operand] == 1:
                    products[number] = operand
                    break
    return products


def format_literal(value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "0x" + struct.pack(">d", value).hex().upper()


def spread(constant: str, kind: str, lanes: int = LANES) -> str:
    """A constant in every lane."""
    return f"<{', '.join([f'{kind} {constant}'] * lanes)}>"


def write_assembly(trace: Trace, which: str) -> str:
    """LLVM assembly of f, jvp or vjp."""
    writer = AssemblyWriter()
    if which == "vjp":
        bars = trace.gradient()
        targets = [
            ("t_bar", 0),
            *(("y_bar", i) for i in range(trace.n)),
            *(("p_bar", j) for j in range(trace.n_parameters)),
        ]
        wanted = [(bar, target) for bar, target in zip(bars, targets, strict=True) if bar is not None]
        values = writer.compute(trace.graph, [bar for bar, _ in wanted])
        for value, (_, (array, index)) in zip(values, wanted, strict=True):
            writer.store(value, array, index, is_sum=True)
    else:
        outputs, array = (trace.outputs, "dy") if which == "f" else (trace.tangent(), "out")
        for i, value in enumerate(writer.compute(trace.graph, outputs)):
            writer.store(value, array, i)
    body = "\n  ".join(writer.lines)
    return f"define i32 @{which}({HEAD[which]}) {{\n  {body}\n  ret i32 0\n}}\n"


DECLARATIONS = (
    "".join(
        f"declare double @{symbol}({', '.join(['double'] * (2 if name in BINARY else 1))})\n"
        for name, symbol in LIBM.items()
    )
    + "declare double @llvm.fmuladd.f64(double, double, double)\n"
    + "declare noalias ptr @calloc(i64, i64)\ndeclare void @free(ptr)\n"
)


class MachineCode:
    """Machine code in memory; `.address` is valid as long as this object exists."""

    trace: Trace | None = None  # of a right-hand side
    loops: Any = None  # of a long right-hand side: `Loops`
    keep_alive: Any = None  # what it was derived from, whose ids are in the key of a cache
    is_derived = False  # from the traces of the user's functions

    def __init__(self, text: str, which: str, may_keep: bool = True):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        is_kept = may_keep and text.count("\n") > LONG
        self._engine = load_object(_load_or_compile_object(text) if is_kept else _build_object(text), _create_machine())
        self.address = self._engine.get_function_address(which)
        self.fused: dict = {}  # whole steps generated from the trace, see `fused_steps`

    def find_address(self, name: str) -> int:
        """The address of another function in the same assembly."""
        return self._engine.get_function_address(name)


def load_object(data: bytes, machine):
    """An engine that holds an object file: machine code that is freed with the engine.

    An engine that compiles by itself would also hold half a megabyte of compiler memory.
    """
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return engine


def dispose_pass_managers() -> None:
    """Let llvmlite free its pass managers, 60 kB each: by the order of their base classes, `_dispose` does nothing."""
    for kind in (newpassmanagers.ModulePassManager, newpassmanagers.FunctionPassManager):
        if kind._dispose is ObjectRef._dispose:
            kind._dispose = newpassmanagers.NewPassManager._dispose


dispose_pass_managers()


def _create_machine():
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )


def _build_object(text: str) -> bytes:
    """Compile without SLP vectorisation, whose shuffles cost more than it saves (0 to 40 % slower, measured)."""
    module = llvm.parse_assembly(f'target triple = "{llvm.get_default_triple()}"\n{DECLARATIONS}{text}')
    machine = _create_machine()
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.loop_interleaving = options.loop_unrolling = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


def _load_or_compile_object(text: str) -> bytes:
    """Compile long code once and store its object beside the kernels, under the hash of its assembly."""
    name = f"traced-{hashlib.sha256(text.encode()).hexdigest()[:32]}.o"
    stored = disk_cache.read(name)
    if stored is None:
        stored = _build_object(text)
        disk_cache.write(name, stored)
    return stored
