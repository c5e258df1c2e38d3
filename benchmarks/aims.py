"""Aims, and whether the measured rows reach them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from benchmarks import ensembles, montecarlo, neural_ode, noise, noisy_nets, pdes, sde_contenders, stiff
from benchmarks.adaptive import LORENZ_TOLERANCE
from benchmarks.batches import OURS as BATCH
from benchmarks.batches import TOLERANCE as BATCH_TOLERANCE
from benchmarks.batches import TORCHODE
from benchmarks.contenders import BESIDE_C, C_LOOP
from benchmarks.drop_in import PROCESS, T_LONG, WITHIN
from benchmarks.gradient_contenders import FORWARD, JAX, OURS, REVERSE
from benchmarks.gradients import CHECKPOINTED, FEW_AND_MANY, PREDICTED, memory_label
from benchmarks.layer_contenders import OURS as LAYERS
from benchmarks.layer_contenders import REVERSIBLE
from benchmarks.layers import DEPTHS, ODE_MEMORY
from benchmarks.layers import memory_label as depth_label
from benchmarks.lines import BY_HAND, FIRST, PROBLEMS, TRACED
from benchmarks.neural_ode import WORKLOAD as NEURAL
from benchmarks.neural_ode_layers import NAME as NEURAL_ODE
from benchmarks.sdes import WORKLOAD as SDES
from benchmarks.stability import CERTIFICATE, DIFFRAX, LYAPUNOV, POLYNOMIAL, REGION, SCAN
from benchmarks.stability import OURS as STUDIES
from benchmarks.stability import WORKLOAD as STABILITY
from benchmarks.stiff import BANDED_SCHEMES
from benchmarks.stiff import SCHEMES as STIFF_SCHEMES
from benchmarks.stiff_batch import ALLOWED as STIFF_BATCH_ERROR
from benchmarks.stiff_batch import OURS as STIFF_BATCH
from benchmarks.stiff_batch import TORCHDIFFEQ as FIXED_IMPLICIT
from benchmarks.stiff_batch import WORKLOAD as STIFF_BATCHES
from benchmarks.training import GRADIENT, PRODUCTS, STEP, STEPS, TASKS, step_label, step_width
from benchmarks.training_contenders import OURS as TRAINED
from benchmarks.training_contenders import SCIKIT, TORCH

NOT_PEERS = ("stepnet", "C", "numba", "numpy")  # hand-written loops among them
FIFTH_ORDER = ("stepnet dopri5", "stepnet tsit5")
ALL_ORDERS = (*FIFTH_ORDER, "stepnet dop853")
STIFF = tuple(f"stepnet {scheme}" for scheme in dict.fromkeys((*STIFF_SCHEMES, *BANDED_SCHEMES)))


class Reached(NamedTuple):
    """A ratio (or a time), and whom it compares."""

    value: float
    between: str


class Aim(NamedTuple):
    """`measure(rows)` gives what was reached, None where a row is missing; `at_most` or at least `bound`."""

    text: str
    workload: str
    at_most: bool
    bound: float
    unit: str
    measure: Callable[[list[dict]], Reached | None]

    def verdict(self, reached: Reached | None) -> str:
        if reached is None:
            return "not measured"
        is_met = reached.value <= self.bound if self.at_most else reached.value >= self.bound
        return "PASS" if is_met else "MISS"


def pick(rows: list[dict], workload: str, contender: str, tolerance: float | None = None) -> dict | None:
    """The row of one contender, if it has a time."""
    for row in rows:
        if (row["workload"], row["contender"], row["tolerance"]) == (workload, contender, tolerance) and row["time"]:
            return row
    return None


def ratio_to(workload: str, ours: str, theirs: str, tolerance: float | None = None):
    """Our time over theirs."""

    def measure(rows):
        a, b = pick(rows, workload, ours, tolerance), pick(rows, workload, theirs, tolerance)
        return None if a is None or b is None else Reached(a["time"] / b["time"], f"{ours} / {theirs}")

    return measure


def seconds_of(workload: str, ours: str):
    """Our time."""

    def measure(rows):
        row = pick(rows, workload, ours)
        return None if row is None else Reached(row["time"], ours)

    return measure


def kernel_to(workload: str, ours: str, theirs: str, tolerance: float | None = None):
    """The time inside our driver and kernel over theirs, both without the set-up of a call."""

    def measure(rows):
        a, b = pick(rows, workload, ours, tolerance), pick(rows, workload, theirs, tolerance)
        return None if a is None or b is None else Reached(a["kernel_time"] / b["time"], f"{ours} / {theirs}")

    return measure


def inverse(measure):
    """Their time over ours."""

    def inverted(rows):
        reached = measure(rows)
        if reached is None:
            return None
        ours, theirs = reached.between.split(" / ")
        return Reached(1 / reached.value, f"{theirs} / {ours}")

    return inverted


def beats_peers(workload: str, tolerance: float, among: tuple[str, ...]):
    """Time of the fastest peer over our fastest scheme (of those in `among`), at equal tolerances."""

    def measure(rows):
        here = [r for r in rows if r["workload"] == workload and r["tolerance"] == tolerance and r["time"]]
        ours = [r for r in here if r["contender"] in among]
        peers = [r for r in here if r["package"] not in NOT_PEERS]
        return _best(((r["time"], r["contender"]) for r in ours), ((r["time"], r["contender"]) for r in peers))

    return measure


def beats_peers_at_error(
    workload: str, error: float, among: tuple[str, ...] = ALL_ORDERS, against: tuple[str, ...] | None = None
):
    """Time of the fastest peer (of those `against`) over our fastest scheme, both to reach this error."""

    def measure(rows):
        here = [r for r in rows if r["workload"] == workload and r["time"]]
        times = {name: time_at_error([r for r in here if r["contender"] == name], error) for name in _names(here)}
        package = {r["contender"]: r["package"] for r in here}
        reached = [(t, name) for name, t in times.items() if t is not None]
        ours = [pair for pair in reached if pair[1] in among]
        peers = [pair for pair in reached if package[pair[1]] not in NOT_PEERS]
        return _best(ours, [pair for pair in peers if against is None or pair[1] in against])

    return measure


def time_at_error(rows: list[dict], error: float) -> float | None:
    """Time to reach an error, by interpolation of log time over log error; None where it was not reached.

    Tightening the tolerance does not always help, so a row counts only if it is more accurate than those before it.
    """
    reached: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda r: -r["tolerance"]):
        if row["error"] is not None and row["error"] > 0 and (not reached or row["error"] < reached[-1][0]):
            reached.append((row["error"], row["time"]))
    if not reached or reached[-1][0] > error:
        return None
    if reached[0][0] <= error:
        return reached[0][1]
    for (e0, t0), (e1, t1) in pairwise(reached):
        if e1 <= error:
            part = math.log(error / e0) / math.log(e1 / e0)
            return t0 * (t1 / t0) ** part
    return None


def seconds(workload: str, contender: str):
    """A time as it is."""

    def measure(rows):
        row = pick(rows, workload, contender)
        return None if row is None else Reached(row["time"], contender)

    return measure


def beyond_numba(contender: str):
    """The time to a first solution less that of importing Numba."""

    def measure(rows):
        row, numba = pick(rows, "cold-start", contender), pick(rows, "cold-start", "import numba alone")
        return None if row is None or numba is None else Reached(row["time"] - numba["time"], contender)

    return measure


def lines(name: str) -> tuple[Aim, ...]:
    """What is wanted of a long system."""
    traced, by_hand, first = (f"{name}, {way}" for way in (TRACED, BY_HAND, FIRST))
    return (
        Aim(f"{name}: loops beside those by hand", "lines", True, 1.1, "x", ratio_to("lines", traced, by_hand)),
        Aim(f"{name}: first solution in a new process", "lines", True, 2.0, "s", seconds("lines", first)),
    )


def sweeps(run: str):
    """The time of a reverse sweep over that of a forward one."""
    return ratio_to("gradients", f"{run}, {REVERSE}", f"{run}, {FORWARD}")


def beats_jax(run: str):
    """The time of a compiled gradient of JAX over that of our whole call."""
    return inverse(ratio_to("gradients", f"{run}, {OURS}", f"{run}, {JAX}"))


def memory_growth(kind: str) -> Callable:
    """By how many megabytes the peak of many steps is above that of few."""

    def growth(rows) -> Reached | None:
        names = [memory_label(kind, steps) for steps in FEW_AND_MANY[kind]]
        few, many = ([r for r in rows if r["contender"] == name and r.get("memory")] for name in names)
        return Reached((many[0]["memory"] - few[0]["memory"]) / 1e6, "peaks") if few and many else None

    return growth


def members_a_second(rows) -> Reached | None:
    """Thousands of members of the large ensemble."""
    found = pick(rows, "ensemble", ensembles.MORE_IN_LANES)
    return found and Reached(1e-3 / found["time"], ensembles.MORE_IN_LANES)


def members_beside_peers(rows) -> Reached | None:
    """The time of the fastest peer for a member over ours."""
    ours = pick(rows, "ensemble", ensembles.IN_LANES)
    peers = [r for r in rows if r["workload"] == "ensemble" and r["package"] not in NOT_PEERS and r["time"]]
    if ours is None or not peers:
        return None
    best = min(peers, key=lambda row: row["time"])
    return Reached(best["time"] / ours["time"], f"{best['contender']} / {ensembles.IN_LANES}")


def neural_ratio(ours: str, theirs: str):
    """Their time over ours."""
    return inverse(ratio_to(NEURAL, ours, theirs))


def neural_error(rows) -> Reached | None:
    """The error of our stored gradient over that of torchdiffeq's."""
    ours, theirs = (pick(rows, NEURAL, name) for name in (neural_ode.STORED, neural_ode.BACKPROP))
    if ours is None or theirs is None:
        return None
    return Reached(ours["error"] / theirs["error"], f"{neural_ode.STORED} / {neural_ode.BACKPROP}")


def neural_memory(rows) -> Reached | None:
    """Megabytes that many steps with checkpoints take."""
    label = neural_ode.memory_label(neural_ode.CHECKPOINTED, neural_ode.MANY_STEPS)
    found = [r["memory"] for r in rows if r["contender"] == label and r.get("memory")]
    return Reached(found[0] / 1e6, label) if found else None


def beats_layers(case: str):
    """The time of the fastest peer over that of ours."""

    def measure(rows):
        here = [r for r in rows if r["workload"] == "layers" and r["contender"].startswith(f"{case}, ") and r["time"]]
        pairs = [(r["package"] in NOT_PEERS, r["package"] == "stepnet", (r["time"], r["contender"])) for r in here]
        return _best([pair for _, ours, pair in pairs if ours], [pair for no, _, pair in pairs if not no])

    return measure


def memory_of(label: str):
    """Megabytes."""

    def measure(rows):
        found = [r for r in rows if r["contender"] == label and r.get("memory") is not None]
        return Reached(found[0]["memory"] / 1e6, label) if found else None

    return measure


def depth_growth(rows) -> Reached | None:
    """By how many megabytes the deepest net is above the flattest."""
    few, many = (memory_of(depth_label(n))(rows) for n in (DEPTHS[0], DEPTHS[-1]))
    return Reached(many.value - few.value, "peaks") if few and many else None


def sde_aims(problem: str) -> tuple[Aim, ...]:
    """What is wanted of the paths of an SDE and of their gradients."""
    ours, gradient = f"{problem}, {sde_contenders.OURS}", f"{problem}, {sde_contenders.GRADIENT}"
    peers = (
        (sde_contenders.NUMPY, 5.0), (sde_contenders.UNSAFE, 25.0), (sde_contenders.TREE, 25.0),
        (sde_contenders.TORCHSDE, 100.0),
    )  # fmt: skip
    return (
        Aim(f"{problem}: paths beside the C loop", SDES, True, 1.2, "x",
            ratio_to(SDES, ours, f"{problem}, {sde_contenders.C}")),
        *(
            Aim(f"{problem}: paths beside {who.split(',')[0]}", SDES, False, bound, "x",
                inverse(ratio_to(SDES, ours, f"{problem}, {who}")))
            for who, bound in peers
        ),
        Aim(f"{problem}: gradients beside JAX", SDES, False, 10.0, "x",
            inverse(ratio_to(SDES, gradient, f"{problem}, {sde_contenders.GRADIENT_DRAWN}"))),
    )  # fmt: skip


def pde_aims(workload: str) -> tuple[Aim, ...]:
    """What is wanted of 200 steps of an equation on 1024 x 1024 points."""
    name = workload.removeprefix("pde-")
    found = [Aim(f"{name}: beside the fastest peer", workload, False, 3.0, "x", beats_on_grid(workload))]
    if workload != pdes.ADVECTION:
        found.append(
            Aim(f"{name}: beside the copy of the same bytes", workload, False, 0.85, "x",
                inverse(ratio_to(workload, pdes.OURS, pdes.COPY)))
        )  # fmt: skip
    if workload == pdes.HEAT_STEPS:
        found.append(
            Aim(f"{name}: beside py-pde", workload, False, 10.0, "x",
                inverse(ratio_to(workload, pdes.OURS, "py-pde")))
        )  # fmt: skip
    return tuple(found)


def beats_on_grid(workload: str):
    """Time of the fastest peer over ours."""

    def measure(rows):
        here = [r for r in rows if r["workload"] == workload and r["time"] and r["contender"] != pdes.COPY]
        ours = [(r["time"], r["contender"]) for r in here if r["contender"] == pdes.OURS]
        return _best(ours, [(r["time"], r["contender"]) for r in here if r["package"] not in ("stepnet", "C")])

    return measure


def _names(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(r["contender"] for r in rows))


def _best(ours, peers) -> Reached | None:
    ours, peers = list(ours), list(peers)
    if not ours or not peers:
        return None
    (mine, my_name), (theirs, their_name) = min(ours), min(peers)
    return Reached(theirs / mine, f"{their_name} / {my_name}")


TOLERANCE = LORENZ_TOLERANCE
BESIDE = (BESIDE_C.name, C_LOOP.name, TOLERANCE)
AIMS = (
    Aim("kernel beside the C loop, rtol = atol = 1e-8", "lorenz", True, 1.2, "x", kernel_to("lorenz", *BESIDE)),
    Aim("kernel beside the C loop, rtol = atol = 1e-8", "pleiades", True, 1.1, "x", kernel_to("pleiades", *BESIDE)),
    Aim("whole call beside the C loop, rtol = atol = 1e-8", "lorenz", True, 1.35, "x", ratio_to("lorenz", *BESIDE)),
    Aim("whole call beside the C loop, rtol = atol = 1e-8", "pleiades", True, 1.15, "x", ratio_to("pleiades", *BESIDE)),
    Aim("our fastest beside the fastest peer, rtol = atol = 1e-8", "lorenz", False, 4.0, "x",
        beats_peers("lorenz", TOLERANCE, ALL_ORDERS)),
    Aim("our fifth-order pairs beside the fastest peer, rtol = atol = 1e-8", "lorenz", False, 4.0, "x",
        beats_peers("lorenz", TOLERANCE, FIFTH_ORDER)),
    Aim("dopri5 beside SciPy RK45, the same pair, rtol = atol = 1e-8", "lorenz", False, 250.0, "x",
        inverse(ratio_to("lorenz", "stepnet dopri5", "SciPy RK45", TOLERANCE))),
    Aim("fastest peer at error 1e-4", "arenstorf", False, 4.0, "x", beats_peers_at_error("arenstorf", 1e-4)),
    Aim("fastest peer at error 3e-8", "arenstorf", False, 8.0, "x", beats_peers_at_error("arenstorf", 3e-8)),
    Aim("fastest peer at error 3e-6", "pleiades", False, 2.0, "x", beats_peers_at_error("pleiades", 3e-6)),
    Aim("fastest peer at error 2e-9", "pleiades", False, 3.5, "x", beats_peers_at_error("pleiades", 2e-9)),
    Aim("fastest peer at error 1e-5", "robertson", False, 4.0, "x", beats_peers_at_error("robertson", 1e-5, STIFF)),
    Aim("fastest peer at error 5e-7", "van der pol", False, 4.0, "x", beats_peers_at_error("van der pol", 5e-7, STIFF)),
    Aim("SciPy BDF with the same bands at error 1e-5", "brusselator", False, 3.0, "x",
        beats_peers_at_error("brusselator", 1e-5, STIFF, ("SciPy BDF",))),
    Aim("leapfrog beside C", "henon-heiles", True, 1.2, "x",
        ratio_to("henon-heiles", "stepnet leapfrog", "C leapfrog")),
    Aim("leapfrog beside rebound", "outer-planets", False, 2.0, "x",
        inverse(ratio_to("outer-planets", "stepnet leapfrog", "rebound leapfrog"))),
    Aim("solve_ivp in place of SciPy's, T = 100", "drop-in", False, 50.0, "x",
        inverse(ratio_to("drop-in", f"stepnet, {WITHIN}", f"SciPy, {WITHIN}"))),
    Aim(f"solve_ivp in place of SciPy's, T = {T_LONG:g}, cold process", "drop-in", False, 50.0, "x",
        inverse(ratio_to("drop-in", f"stepnet, {PROCESS}", f"SciPy, {PROCESS}"))),
    Aim("cold process to first solution, warm disk", "cold-start", True, 0.6, "s",
        seconds("cold-start", "stepnet dopri5")),
    Aim("first solution beyond `import numba`, traced", "cold-start", True, 0.4, "s", beyond_numba("stepnet dopri5")),
    Aim("first solution beyond `import numba`, compiled", "cold-start", True, 0.6, "s",
        beyond_numba("stepnet dopri5, compiled by Numba")),
    *(aim for problem in PROBLEMS for aim in lines(problem.name)),
    Aim("reverse sweep beside the forward one", "gradients", True, 3.5, "x", sweeps("lorenz")),
    Aim("reverse sweep beside the forward one", "gradients", True, 3.5, "x", sweeps("pleiades")),
    Aim("the same gradient by JAX", "gradients", False, 10.0, "x", beats_jax("lorenz")),
    Aim("the same gradient by JAX", "gradients", False, 3.0, "x", beats_jax("pleiades")),
    Aim("the same gradient by JAX", "gradients", False, 1.0, "x", beats_jax("lorenz-96")),
    Aim("checkpoints beside the sweeps that they need", "gradients", True, 1.15, "x",
        ratio_to("gradients", CHECKPOINTED, PREDICTED)),
    Aim("memory of 10^7 steps beyond that of 10^4, 20 slots", "gradients", True, 2.0, "MB",
        memory_growth("given")),
    Aim("memory of 10^6 adaptive steps beyond that of 10^4: their times, 20 slots", "gradients", True, 18.0, "MB",
        memory_growth("adaptive")),
    Aim("members a second in lanes, one thread", "ensemble", False, 250.0, "k/s", members_a_second),
    Aim("members in lanes beside the fastest peer", "ensemble", False, 15.0, "x", members_beside_peers),
    Aim("orbits in lanes beside one orbit, per orbit", "ensemble", False, 10.0, "x",
        inverse(ratio_to("ensemble", ensembles.MANY_ORBITS, ensembles.ONE_ORBIT))),
    Aim("Pleiades in lanes beside one by one", "ensemble", False, 2.3, "x",
        inverse(ratio_to("ensemble", ensembles.MANY_PLEIADES, ensembles.ONE_PLEIADES))),
    Aim("Robertson members in lanes beside diffrax vmap, rtol 1e-6", stiff.ENSEMBLE, False, 10.0, "x",
        inverse(ratio_to(stiff.ENSEMBLE, stiff.LANES, stiff.VMAP, stiff.RATIO))),
    Aim("two threads beside one", "ensemble", False, 1.7, "x",
        inverse(ratio_to("ensemble", ensembles.ON_TWO, ensembles.MORE_IN_LANES))),
    Aim("a batch with steps of every sample's own, rtol = atol = 1e-6", "batch", False, 2.0, "x",
        inverse(ratio_to("batch", BATCH, TORCHODE, BATCH_TOLERANCE))),
    Aim("a stiff batch with implicit steps beside torchdiffeq's, error 1e-3", STIFF_BATCHES, False, 3.0, "x",
        inverse(ratio_to(STIFF_BATCHES, STIFF_BATCH, FIXED_IMPLICIT, STIFF_BATCH_ERROR))),
    Aim("stored gradient beside torchdiffeq's", NEURAL, False, 1.3, "x",
        neural_ratio(neural_ode.STORED, neural_ode.BACKPROP)),
    Aim("compiled gradient beside torchdiffeq's", NEURAL, False, 2.0, "x",
        neural_ratio(neural_ode.COMPILED, neural_ode.BACKPROP)),
    Aim("stored gradient beside torchdiffeq's adjoint", NEURAL, False, 2.0, "x",
        neural_ratio(neural_ode.STORED, neural_ode.ADJOINT)),
    Aim("error of the stored gradient beside torchdiffeq's", NEURAL, True, 1.0, "x", neural_error),
    Aim("checkpoints beside the stored gradient", NEURAL, True, 1.6, "x",
        ratio_to(NEURAL, neural_ode.CHECKPOINTED, neural_ode.STORED)),
    Aim("memory of the gradient of 10^4 steps, 32 slots", NEURAL, True, 60.0, "MB", neural_memory),
    *(
        Aim(f"10^4 points, 10^3 paths, 100 steps beside {peer.split()[0]}", montecarlo.WORKLOAD, False, bound, "x",
            inverse(ratio_to(montecarlo.WORKLOAD, montecarlo.OURS, peer)))
        for peer, bound in ((montecarlo.NUMPY, 5.0), (montecarlo.TORCH, 10.0))
    ),
    Aim("training step of a net with noise beside torch", noisy_nets.STEP, False, 2.0, "x",
        inverse(ratio_to(noisy_nets.STEP, noisy_nets.OURS, noisy_nets.TORCH))),
    Aim("probabilities by levels of depth beside plain paths", noisy_nets.PREDICT, True, 1.0 / 3.0, "x",
        ratio_to(noisy_nets.PREDICT, noisy_nets.LEVELLED, noisy_nets.PLAIN)),
    *(
        Aim(f"{dynamics} net of width {width} beside the fastest peer", "layers", False, bound, "x",
            beats_layers(f"{dynamics} {width}"))
        for dynamics in ("residual", "verlet") for width, bound in ((4, 3.5), (16, 2.5), (64, 1.2), (256, 0.9))
    ),
    *(
        Aim(f"reversible Verlet beside stored, width {width}", "layers", True, 1.3, "x",
            ratio_to("layers", f"verlet {width}, {REVERSIBLE}", f"verlet {width}, {LAYERS}"))
        for width in (4, 16, 64, 256)
    ),
    Aim("memory of 10^4 reversible layers beyond that of 100", "layers", True, 2.0, "MB", depth_growth),
    Aim("neural ODE beside the faster library", "layers", False, 4.0, "x", beats_layers(NEURAL_ODE)),
    *(
        Aim(f"{task.name}: time to {task.accuracy:.0%} beside {peer}", "training", False,
            3.0 if task.width <= 32 and peer == TORCH else 1.0, "x",
            inverse(ratio_to("training", f"{task.name}, {TRAINED}", f"{task.name}, {peer}")))
        for task in TASKS for peer in ((TORCH,) if task.kind == "residual" else (TORCH, SCIKIT))
    ),
    *(
        Aim(f"a step of Gauss-Newton with {PRODUCTS} products beside a gradient, {step_width(width, precision)}",
            "training", True, 6.0, "x",
            ratio_to("training", step_label(width, precision, STEP), step_label(width, precision, GRADIENT)))
        for width, precision in STEPS
    ),
    *(aim for problem in (sde_contenders.GBM, sde_contenders.OU) for aim in sde_aims(problem.name)),
    Aim("|R(z)| of dopri5 on 1000 x 1000 points beside its polynomial by numpy", STABILITY, False, 5.0, "x",
        inverse(ratio_to(STABILITY, f"{REGION}, {STUDIES}", f"{REGION}, {POLYNOMIAL}"))),
    *(
        Aim(f"Lyapunov spectrum of Lorenz-96, n = 40, beside {peer}", STABILITY, False, 5.0, "x",
            inverse(ratio_to(STABILITY, f"{LYAPUNOV}, {STUDIES}", f"{LYAPUNOV}, {peer}")))
        for peer in (SCAN, DIFFRAX)
    ),
    Aim("certificate of a net of 100 layers, width 64", STABILITY, True, 2.0, "s",
        seconds_of(STABILITY, f"{CERTIFICATE}, {STUDIES}")),
    *(
        Aim(f"random access: {ours.removeprefix('stepnet ')} beside torchsde's", noise.WORKLOAD, False, 10.0, "x",
            inverse(ratio_to(noise.WORKLOAD, ours, noise.TORCHSDE)))
        for ours in (noise.BATCH, noise.SINGLE)
    ),
    *(aim for workload in pdes.STEPPED for aim in pde_aims(workload)),
    Aim("several steps in one sweep beside one at a time, 2048 x 2048", pdes.BLOCKED, False, 1.4, "x",
        inverse(ratio_to(pdes.BLOCKED, pdes.OURS, pdes.UNBLOCKED))),
    Aim("alternating directions beside Crank-Nicolson by sparse LU, 1024 x 1024", pdes.ALTERNATING, False, 3.0, "x",
        inverse(ratio_to(pdes.ALTERNATING, pdes.OURS, pdes.SPARSE))),
    Aim("Laplacian of an array beside its copy, 2048 x 2048", pdes.APPLIED, False, 0.7, "x",
        inverse(ratio_to(pdes.APPLIED, pdes.OURS, pdes.COPY))),
    Aim("Laplacian of an array beside the fastest peer, 2048 x 2048", pdes.APPLIED, False, 3.0, "x",
        beats_on_grid(pdes.APPLIED)),
    Aim("gradient of 500 heat steps beside the solve, 256 x 256", pdes.DIFFERENTIATED, True, 4.0, "x",
        ratio_to(pdes.DIFFERENTIATED, pdes.GRADIENT, pdes.FORWARD)),
    Aim("memory of a neural ODE of 10^4 steps", "layers", True, 20.0, "MB", memory_of(ODE_MEMORY)),
)  # fmt: skip
