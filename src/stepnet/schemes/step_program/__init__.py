"""Steps of schemes as straight-line programs: evaluations of parts, implicit stages, and linear combinations of rows.

Generated code and derivatives depend on a scheme only through its program.  Run in reverse, with each operation
transposed, a program is the exact adjoint of its step.
"""

from stepnet.schemes.step_program.multistep_steps import build_long_window, build_window
from stepnet.schemes.step_program.operations import (
    COLUMN,
    DIFFUSION,
    DIFFUSION_DERIVATIVE,
    DRIFT,
    ELEMENTWISE,
    MATRIX,
    SCALAR,
    LinearSolve,
    Noise,
    Operation,
    Phi,
    Product,
    SchemeProgram,
    Slope,
    Solve,
    StepProgram,
    Sum,
    Tamed,
    Term,
)
from stepnet.schemes.step_program.program_writer import ProgramWriter
from stepnet.schemes.step_program.scheme_programs import build_held_program, build_scheme_program
from stepnet.schemes.step_program.splitting_steps import find_inner_scheme
from stepnet.schemes.step_program.stochastic_steps import append_noise, build_stochastic_pair, build_stochastic_program

__all__ = [
    "COLUMN", "DIFFUSION", "DIFFUSION_DERIVATIVE", "DRIFT", "ELEMENTWISE", "MATRIX", "SCALAR", "LinearSolve", "Noise",
    "Operation", "Phi", "Product", "ProgramWriter", "SchemeProgram", "Slope", "Solve", "StepProgram", "Sum", "Tamed",
    "Term", "append_noise", "build_held_program", "build_long_window", "build_scheme_program",
    "build_stochastic_pair", "build_stochastic_program", "build_window", "find_inner_scheme",
]  # fmt: skip
