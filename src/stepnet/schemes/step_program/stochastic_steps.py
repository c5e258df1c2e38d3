"""Programs of schemes for stochastic equations, and noise appended to the steps of other schemes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from stepnet.schemes.step_program.operations import (
    DIFFUSION,
    DIFFUSION_DERIVATIVE,
    DRIFT,
    ELEMENTWISE,
    MATRIX,
    Noise,
    SchemeProgram,
    Slope,
    StepProgram,
    Sum,
)
from stepnet.schemes.step_program.program_writer import ProgramWriter, write_nothing
from stepnet.schemes.stochastic import PAIRED, ReversibleHeun, StochasticRK, TamedEuler
from stepnet.schemes.weak import WeakRK


def append_noise(scheme_program: SchemeProgram, scale: float, part: int | None) -> SchemeProgram:
    """Steps of a scheme, each followed by y <- y + scale g(t + h, y) dW, elementwise (Lie-Trotter splitting).

    g is the part `part` of the problem, or 1 without it.  Partitioned rows (q, p) become (q, p + scale g(t + h, q) dW),
    which has an exact inverse.  The steps must pass on nothing but the state.
    """
    step, back = scheme_program.step, scheme_program.back
    writer = ProgramWriter(step.n_rows, step.operations)
    outputs = list(step.outputs)
    outputs[-1] = _write_noise(writer, outputs, scale, part)
    undone = None
    if back is not None and (part is None or step.n_rows > 1):
        undone = _write_before(ProgramWriter(step.n_rows), scale, part, back)
    return scheme_program._replace(step=writer.program(outputs), back=undone)


def _write_noise(writer: ProgramWriter, rows: list[int], scale: float, part: int | None) -> int:
    """The last of the rows with noise, whose diffusion depends on the first one."""
    if part is None:
        noise = writer.noise("W")
    else:
        noise = writer.noise_of(writer.slope(part, rows[0], 1.0), "W", ELEMENTWISE)
    return writer.sum([(rows[-1], 1.0, 0), (noise, scale, 0)])


def _write_before(writer: ProgramWriter, scale: float, part: int | None, program: StepProgram) -> StepProgram:
    """Remove the noise of a step, then run a program."""
    rows = list(range(program.n_rows))
    rows[-1] = _write_noise(writer, rows, -scale, part)
    for operation in program.operations:
        if isinstance(operation, Slope):
            rows.append(writer.slope(operation.part, rows[operation.row], operation.c, operation.step))
        elif isinstance(operation, Sum):
            rows.append(writer.sum([(rows[term.row], term.weight, term.power) for term in operation.terms]))
    return writer.program([rows[row] for row in program.outputs])


@lru_cache(maxsize=256)
def build_stochastic_program(scheme: Any, kind: str, n_components: int = 1) -> SchemeProgram:
    """Build the programs of a stochastic scheme for diffusions that are multiplied elementwise, by one number, or as a
    matrix with `n_components` columns.
    """
    if isinstance(scheme, ReversibleHeun):
        return _write_reversible_heun(kind)
    if isinstance(scheme, TamedEuler):
        step = _write_tamed_euler(kind)
    elif isinstance(scheme, WeakRK):
        step = _write_weak_columns(scheme, n_components) if kind == MATRIX else _write_weak_together(scheme, kind)
    else:
        step = _write_stochastic_runge_kutta(scheme, kind)
    return SchemeProgram(write_nothing(1), step, (0,))


@lru_cache(maxsize=256)
def build_stochastic_pair(scheme: StochasticRK, kind: str) -> StepProgram:
    """Build a step with its error estimates, of drift and of noise, which are outputs only: rows 1 and 2."""
    return _write_stochastic_runge_kutta(scheme, kind, has_estimate=True)


def _write_stochastic_runge_kutta(scheme: StochasticRK, kind: str, has_estimate: bool = False) -> StepProgram:
    """Stages in turn; those that nothing depends on are omitted."""
    writer = ProgramWriter(3 if has_estimate else 1)
    f: dict[int, int] = {}
    g: dict[int, int] = {}

    def list_terms(weights_f: Any, weights_g: Any) -> list[tuple[int, float, int]]:
        drifts = [(slope(i), w, 1) for i, w in enumerate(weights_f) if w != 0]
        noises = [
            (writer.noise_of(diffusion(i), x, kind), w, 0) for x, row in weights_g for i, w in enumerate(row) if w != 0
        ]
        return [*noises, *drifts]

    def combine(weights_f: Any, weights_g: Any, weights_derivative: Any = ()) -> int:
        terms = [(derive(x), w, 0) for x, w in weights_derivative if w != 0]
        return writer.sum([(0, 1.0, 0), *list_terms(weights_f, weights_g), *terms])

    def derive(x: str) -> int:
        """The derivative of the diffusion along itself, times a random variable."""
        derivative = writer.slope(DIFFUSION_DERIVATIVE, 0, 0.0)
        return writer.noise_of(derivative, x, kind, kind == MATRIX and x in PAIRED)

    def slope(i: int) -> int:
        if i not in f:
            own, weights_g = scheme.A0[i][i], [(x, B[i]) for x, B in scheme.B0]
            row = combine(scheme.A0[i][:i], weights_g, [(x, weights[i]) for x, weights in scheme.gamma0])
            c = scheme.c0[i]
            f[i] = writer.solve(DRIFT, row, [[own]], [c]) if own else writer.slope(DRIFT, row, c)
        return f[i]

    def diffusion(i: int) -> int:
        if i not in g:
            g[i] = writer.slope(DIFFUSION, combine(scheme.A1[i], [(x, B[i]) for x, B in scheme.B1]), scheme.c1[i])
        return g[i]

    new = combine(scheme.alpha, scheme.beta)
    if scheme.gamma:
        new = writer.sum([(new, 1.0, 0), *((derive(x), w, 0) for x, w in scheme.gamma)])
    if not has_estimate:
        return writer.program([new])
    alpha, beta = _subtract_embedded(scheme)
    return writer.program([new, writer.sum(list_terms(alpha, ())), writer.sum(list_terms((), beta))])


def _subtract_embedded(scheme: StochasticRK) -> tuple[Any, Any]:
    """The weights of a scheme minus those of the embedded one."""
    embedded = scheme.embedded
    if embedded is None:
        raise ValueError(f"{scheme.name} has no error estimate")
    others = dict(embedded.beta)
    beta = [(x, _subtract(row, others.get(x, (0.0,) * len(row)))) for x, row in scheme.beta]
    return _subtract(scheme.alpha, embedded.alpha), beta


def _subtract(x: Iterable[float], y: Iterable[float]) -> tuple[float, ...]:
    return tuple(a - b for a, b in zip(x, y, strict=True))


def _write_tamed_euler(kind: str) -> StepProgram:
    writer = ProgramWriter(1)
    noise = writer.noise_of(writer.slope(DIFFUSION, 0, 0.0), "W", kind)
    return writer.program(
        [writer.sum([(0, 1.0, 0), (noise, 1.0, 0), (writer.tame(writer.slope(DRIFT, 0, 0.0)), 1.0, 1)])]
    )


def _write_weak_together(scheme: WeakRK, kind: str) -> StepProgram:
    """Stages of all components at once: a component of the noise does not change the diffusion of another one."""
    writer = ProgramWriter(1)
    f: list[int] = []
    g: list[int] = []
    for i in range(len(scheme.alpha)):
        drifts = [(k, w, 1) for k, w in zip(f, scheme.A1[i], strict=False)]
        noises = [(writer.noise_of(k, "sqrt(h)", kind), w, 0) for k, w in zip(g, scheme.B1[i], strict=False) if w != 0]
        g.append(writer.slope(DIFFUSION, writer.sum([(0, 1.0, 0), *noises, *drifts]), scheme.c1[i]))
        drifts = [(k, w, 1) for k, w in zip(f, scheme.A0[i], strict=False)]
        noises = [(writer.noise_of(k, "V", kind), w, 0) for k, w in zip(g, scheme.B0[i], strict=False) if w != 0]
        f.append(writer.slope(DRIFT, writer.sum([(0, 1.0, 0), *noises, *drifts]), scheme.c0[i]))
    noises = [(writer.noise_of(k, "V", kind), w, 0) for k, w in zip(g, scheme.beta1, strict=True)]
    noises += [(writer.noise_of(k, "V2", kind), 0.5 * w, 0) for k, w in zip(g, scheme.beta2, strict=True) if w != 0]
    return writer.program(
        [writer.sum([(0, 1.0, 0), *noises, *((k, w, 1) for k, w in zip(f, scheme.alpha, strict=True))])]
    )


def _write_weak_columns(scheme: WeakRK, m: int) -> StepProgram:
    """Stages of each component k of the noise, from which the column k of the diffusion is used."""
    writer, s = ProgramWriter(1), len(scheme.alpha)
    f: list[int] = []
    g: list[list[int]] = []  # by stage and component
    V, root, pairs = Noise("V"), Noise("sqrt(h)"), Noise("V2", True)

    def add_columns(stages: Any, weights: Any, noise: Noise, factor: float = 1.0) -> list[tuple[int, float, int]]:
        """sum_j sum_k w_j g^k(stage j of k) X_k."""
        return [
            (writer.column_of(rows[k], k, noise, k * (m + 1) if noise.is_paired else k), factor * w, 0)
            for rows, w in zip(stages, weights, strict=False) if w != 0 for k in range(m)
        ]  # fmt: skip

    def list_drifts(weights: Any) -> list[tuple[int, float, int]]:
        return [(k, w, 1) for k, w in zip(f, weights, strict=False)]

    for i in range(s):
        drifts = list_drifts(scheme.A1[i])
        own = [
            [(writer.column_of(rows[k], k, root, k), w, 0) for rows, w in zip(g, scheme.B1[i], strict=False) if w != 0]
            for k in range(m)
        ]
        g.append([writer.slope(DIFFUSION, writer.sum([(0, 1.0, 0), *some, *drifts]), scheme.c1[i]) for some in own])
        terms = [*add_columns(g, scheme.B0[i], V), *list_drifts(scheme.A0[i])]
        f.append(writer.slope(DRIFT, writer.sum([(0, 1.0, 0), *terms]), scheme.c0[i]))
    hats = []
    for weights in scheme.B2:
        others = [
            [(writer.column_of(g[j][i], i, pairs, k * m + i), 0.5 * w, 0) for j, w in enumerate(weights) if w != 0
             for i in range(m) if i != k]
            for k in range(m)
        ]  # fmt: skip
        hats.append([writer.slope(DIFFUSION, writer.sum([(0, 1.0, 0), *some]), 0.0) for some in others])
    terms = [
        *add_columns(g, scheme.beta1, V), *add_columns(g, scheme.beta2, pairs, 0.5),
        *add_columns(hats, scheme.beta3, V), *add_columns(hats, scheme.beta4, root),
    ]  # fmt: skip
    return writer.program([writer.sum([(0, 1.0, 0), *terms, *list_drifts(scheme.alpha)])])


def _write_reversible_heun(kind: str) -> SchemeProgram:
    """Rows are y and z; the drift and the diffusion at z are evaluated again in the next step."""

    def average(writer: ProgramWriter, y: int, z: int, z_new: int, c: float, sign: float) -> int:
        slopes = [writer.slope(DRIFT, z, c), writer.slope(DRIFT, z_new, 1.0 - c)]
        spreads = [writer.slope(DIFFUSION, z, c), writer.slope(DIFFUSION, z_new, 1.0 - c)]
        noises = [(writer.noise_of(g, "W", kind), 0.5 * sign, 0) for g in spreads]
        return writer.sum([(y, 1.0, 0), *noises, *((f, 0.5 * sign, 1) for f in slopes)])

    def move(writer: ProgramWriter, c: float, sign: float) -> StepProgram:
        noise = writer.noise_of(writer.slope(DIFFUSION, 1, c), "W", kind)
        z = writer.sum([(0, 2.0, 0), (1, -1.0, 0), (noise, sign, 0), (writer.slope(DRIFT, 1, c), sign, 1)])
        return writer.program([average(writer, 0, 1, z, c, sign), z])

    opening = StepProgram(2, (), (0, 0), 0)
    return SchemeProgram(opening, move(ProgramWriter(2), 0.0, 1.0), (0,), move(ProgramWriter(2), 1.0, -1.0))
