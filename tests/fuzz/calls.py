"""One valid call of every public callable: `CALLS[name]()` gives the function and its arguments.

Names are those of a user: the module, the class, the method.  Public methods of what public functions return are named
by their class.
"""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable
from enum import Enum
from functools import cache, wraps
from importlib import import_module
from types import ModuleType

os.environ.setdefault("MPLBACKEND", "Agg")

import dask.array
import numpy as np
import torch

import stepnet as sn
import stepnet.torch as snt
from stepnet.engines import contract
from stepnet.nets import losses

RNG_X = np.linspace(-1.0, 1.0, 12).reshape(6, 2)
LABELS = np.array([0, 1, 0, 1, 0, 1])
ADJACENCY = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], float)
SPAN = (0.0, 1.0)


# ---- functions of a well-behaved user -------------------------------------------------------------------------------


def decay(t, y, k=1.0):
    return [-k * y[0], -y[1]]


def turn(t, y):
    return [y[1], -y[0]]


def force(t, q):
    return [-q[0]]


def drift(t, p):
    return [p[0]]


def half(t, y):
    return [-0.5 * y[0], -0.5 * y[1]]


def crossing(t, y):
    return y[0] - 0.5


def squares(y):
    return 0.5 * (y[0] * y[0] + y[1] * y[1])


def squares_and_gradient(y):
    return 0.5 * float(np.sum(y * y)), y


def moved(t, y):
    return y


def tensor_decay(t, y):
    return -y


def tensor_crossing(t, y):
    return y.sum() - 0.5


def tensor_crossings(t, y):
    return y.sum(1) - 0.5


def energy(solution):
    return np.sum(solution.y**2, axis=1)


def predict(points):
    return (points[:, 0] > 0).astype(int)


def last_states(chunk):
    return chunk.y[:, 0]


def first_entry(solution):
    return solution.y_end[:, 0]


def escaped(t, y):
    return y[0] - 0.5


def doubled(x):
    return 2.0 * x


def mapped(function, *lists):
    return [function(*each) for each in zip(*lists, strict=True)]


# ---- objects --------------------------------------------------------------------------------------------------------


def ode(**changes) -> sn.ODE:
    return sn.ODE(**{"fun": turn, "y0": [1.0, 0.0], "t_span": SPAN, **changes})


def decaying() -> sn.ODE:
    return sn.ODE(decay, [1.0, 0.5], SPAN, (1.0,))


def second_order() -> sn.SecondOrder:
    return sn.SecondOrder(force, [1.0], [0.0], SPAN)


@cache
def solution() -> sn.Solution:
    return sn.solve(ode(), "dopri5", dense=True)


@cache
def ensemble():
    return sn.solve_ensemble(decaying(), "rk4", y0=[[1.0, 0.5], [0.5, 1.0]], steps=3)


def integrator() -> sn.Integrator:
    return sn.start(decaying(), "dopri5")


def net(**options):
    return sn.nets.resnet(2, 2, 3, 2, **options)


@cache
def design():
    return net().design


def block():
    return sn.nets.Block(sn.fields.residual(sn.fields.dense(3)), sn.schemes.get("euler"), 2)


def node_model():
    return sn.nets.NodeModel(sn.nets.node_net(ADJACENCY, 2, 2, 2, 2), np.ones((3, 2)))


def data():
    return sn.training.Data(RNG_X, LABELS)


def objective():
    return sn.training.Objective(net(), losses.get("cross_entropy"))


@cache
def run():
    return sn.training.train(objective(), data(), sn.training.Recipe(epochs=2))


def part():
    model = net()
    return sn.training.Part(model, np.arange(3))


@cache
def fitted():
    return sn.estimators.NetClassifier("resnet", width=3, steps=2, epochs=1).fit(RNG_X, LABELS)


@cache
def fitted_with_noise():
    return sn.estimators.FeynmanKacClassifier(width=3, steps=2, epochs=1, paths=3).fit(RNG_X, LABELS)


@cache
def fitted_noisy_regressor():
    return sn.estimators.FeynmanKacRegressor(width=3, steps=2, epochs=1, paths=3).fit(RNG_X, RNG_X[:, 0])


@cache
def fitted_regressor():
    return sn.estimators.NetRegressor("resnet", width=3, steps=2, epochs=1).fit(RNG_X, RNG_X[:, 0])


def chunk(**more):
    return sn.reductions.Chunk(decaying(), sn.schemes.get("rk4"), {"y0": np.ones((3, 2))}, {"steps": 4, **more})


def depth():
    return sn.fields.Depth(4, 1)


def held():
    return sn.fields.HeldWeights(3)


def schedule():
    return sn.checkpoints.binomial(5, 2)


class QuietRun:
    """What a schedule calls; nothing happens."""

    def advance(self, start, stop):
        pass

    def keep(self, start, slot):
        pass

    restore = drop = keep

    def reverse(self, start):
        pass


def online():
    found = sn.checkpoints.online(2)
    found.step()
    return found


def two_level():
    found = sn.checkpoints.two_level(2, 2)
    found.step()
    return found


def loss():
    return losses.get("mse")


def jacobian():
    return sn.derivatives.jacobian(decaying())


def layer_block():
    return snt.LayerBlock(block())


def layer_chain():
    return snt.LayerChain(sn.fields.affine(sn.fields.dense(3)))


def field_function():
    return snt.FieldFunction(sn.fields.residual(sn.fields.dense(3)))


def pairs() -> torch.Tensor:
    return torch.ones(2, 2, dtype=torch.float64)


class TensorGBM:
    sde_type, noise_type = "ito", "diagonal"

    def f(self, t, y):
        return 0.05 * y

    def g(self, t, y):
        return 0.2 * y


def with_a_group(function):
    """The function, run while this process is a group of its own."""

    @wraps(function)
    def call(*args, **named):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            return function(*args, **named)
        finally:
            torch.distributed.destroy_process_group()

    return call


def module():
    return snt.from_net(net())


@cache
def batch_solution():
    return snt.solve(tensor_decay, torch.ones(2, 3), torch.tensor([0.0, 1.0]), dense=True)


def stored(save: Callable, suffix: str = "") -> str:
    path = os.path.join(tempfile.mkdtemp(dir=os.getcwd()), "stored" + suffix)
    save(path)
    return path


def trained_path() -> str:
    return stored(lambda path: sn.training.train(objective(), data(), sn.training.Recipe(epochs=1), path=path))


def set_state(integrator, y):
    integrator.y = y


def set_args(integrator, args):
    integrator.args = args


# ---- the registry ---------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[], tuple[Callable, dict]]] = {}


def public(name: str) -> Callable:
    """The callable of a public name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for each in parts[end:]:
            found = getattr(found, each)
        return found
    raise LookupError(name)


def add(name: str, arguments: Callable[[], dict] = dict) -> None:
    """A function or class of the package, with the arguments of a valid call."""
    CALLS[name] = lambda: (public(name), arguments())


def add_methods(name: str, build: Callable, **methods: Callable[[], dict]) -> None:
    """Methods of an object."""
    for method, arguments in methods.items():
        CALLS[f"{name}.{method}"] = lambda method=method, arguments=arguments: (getattr(build(), method), arguments())


how_to_step = {"rtol": 1e-3, "atol": 1e-6}

add("stepnet.ODE", lambda: {"fun": decay, "y0": [1.0, 0.5], "t_span": SPAN, "args": (1.0,)})
add("stepnet.Gmres", lambda: {"rtol": 1e-6, "restart": 10, "max_iterations": 50, "preconditioner": decay})
add("stepnet.Partitioned", lambda: {"dq": drift, "dp": force, "q0": [1.0], "p0": [0.0], "t_span": SPAN})
add("stepnet.SecondOrder", lambda: {"acceleration": force, "q0": [1.0], "v0": [0.0], "t_span": SPAN})
add("stepnet.SDE", lambda: {
    "drift": decay, "diffusion": half, "y0": [1.0, 0.5], "t_span": SPAN, "noise": "diagonal", "calculus": "ito",
    "seed": 3, "path": 1, "cells": 16,
})  # fmt: skip
add_methods("stepnet.SDE", lambda: sn.SDE(decay, half, [1.0, 0.5], SPAN), convert=lambda: {"calculus": "stratonovich"})
add("stepnet.Langevin", lambda: {
    "force": force, "q0": [1.0], "v0": [0.0], "t_span": SPAN, "friction": 0.5, "temperature": 1.0, "mass": 2.0,
    "seed": 3, "path": 1, "cells": 16,
})  # fmt: skip
add("stepnet.Split", lambda: {"parts": (half, half), "y0": [1.0, 0.5], "t_span": SPAN})
add("stepnet.Solution", lambda: {
    each: getattr(solution(), each)
    for each in ("t", "y", "status", "message", "statistics", "scheme", "problem")
})  # fmt: skip
add_methods("stepnet.Solution", solution, __call__=lambda: {"t": 0.5}, citation=dict)
add("stepnet.Statistics", lambda: {"accepted": 1, "rejected": 0, "evaluations": 4, "rung": "python"})
add("stepnet.Failure", lambda: {"t": 0.0, "h": 0.1, "y_norm": 1.0, "slope_norm": 1.0})
add("stepnet.Event", lambda: {"fun": crossing})
add("stepnet.solve", lambda: dict(problem=ode(), scheme="dopri5", **how_to_step))
CALLS["solve with a right-hand side"] = lambda: (
    lambda fun, y0, t_span, args, steps: sn.solve(sn.ODE(fun, y0, t_span, args), "rk4", steps=steps),
    {"fun": decay, "y0": [1.0, 0.5], "t_span": SPAN, "args": (1.0,), "steps": 3},
)
CALLS["solve a partitioned problem"] = lambda: (
    lambda dq, dp, q0, p0, steps: sn.solve(sn.Partitioned(dq, dp, q0, p0, SPAN), "verlet", steps=steps),
    {"dq": drift, "dp": force, "q0": [1.0], "p0": [0.0], "steps": 3},
)
CALLS["solve with events"] = lambda: (
    lambda fun, direction, terminal, project: sn.solve(
        ode(), "dopri5", events=sn.Event(fun, direction, terminal), project=project
    ),
    {"fun": crossing, "direction": 0, "terminal": False, "project": None},
)
CALLS["gradient with a loss"] = lambda: (
    lambda loss, y0, args, memory: sn.gradient(sn.ODE(decay, y0, SPAN, args), "rk4", loss, steps=3, memory=memory),
    {"loss": squares, "y0": [1.0, 0.5], "args": (1.0,), "memory": "auto"},
)
add("stepnet.start", lambda: dict(problem=ode(), scheme="dopri5", **how_to_step))
add("stepnet.Integrator", lambda: {
    "problem": ode(), "scheme": sn.schemes.get("rk4"),
    "plan": contract.Plan(contract.FixedSteps(3), contract.Saving(None, 0)),
})  # fmt: skip
add_methods("stepnet.Integrator", integrator, step=dict, run_to=lambda: {"t": 0.5}, save=lambda: {"path": "stored.npz"})
CALLS["stepnet.Integrator.y"] = lambda: (set_state, {"integrator": integrator(), "y": [1.0, 2.0]})
CALLS["stepnet.Integrator.args"] = lambda: (set_args, {"integrator": integrator(), "args": (2.0,)})
add(
    "stepnet.solve_ivp",
    lambda: {"fun": turn, "t_span": SPAN, "y0": [1.0, 0.0], "method": "RK45", "rtol": 1e-3, "atol": 1e-6},
)
add_methods(
    "stepnet.solving.ivp.DenseSolution", lambda: sn.solve_ivp(turn, SPAN, [1.0, 0.0], dense_output=True).sol,
    __call__=lambda: {"/0": 0.5},
)  # fmt: skip
add(
    "stepnet.solve_ensemble",
    lambda: {"problem": decaying(), "scheme": "rk4", "y0": [[1.0, 0.5], [0.5, 1.0]], "steps": 3},
)
add("stepnet.EnsembleSolution", lambda: {
    each: getattr(ensemble(), each) for each in inspect.signature(sn.EnsembleSolution).parameters
})  # fmt: skip
add_methods("stepnet.EnsembleSolution", ensemble, message_of=lambda: {"i": 0}, table=dict)
add("stepnet.sweep", lambda: {
    "problem": decaying(), "scheme": "rk4", "grid": {"args[0]": [1.0, 2.0], "y0[1]": [0.5, 1.0]}, "steps": 3,
    "reduce": sn.reductions.States(), "workers": 1,
})  # fmt: skip
add("stepnet.SweepResult", lambda: {"grid": {}, "results": {}, "counts": {}, "scheme": sn.schemes.get("rk4")})
add("stepnet.Checkpoints", lambda: {"slots": 2})
add("stepnet.address", lambda: {"number": 2**20})
add("stepnet.Address", lambda: {"value": 2**20})
add_methods("stepnet.Checkpoints", lambda: sn.Checkpoints(bytes=1000), slots_for=lambda: {"bytes_per_state": 8})
add("stepnet.gradient", lambda: {"problem": decaying(), "scheme": "rk4", "loss": squares, "steps": 3})
add("stepnet.Gradient", lambda: {
    "value": 1.0, "y0": np.ones(2), "args": (1.0,), "t_span": None, "y": np.ones(2), "memory": "all", "rung": "python",
    "cost": sn.gradient(decaying(), "rk4", squares, steps=3).cost, "problem": decaying(),
})  # fmt: skip
add("stepnet.gradient_ensemble", lambda: {
    "problem": decaying(), "scheme": "rk4", "loss": squares, "y0": [[1.0, 0.5], [0.5, 1.0]], "steps": 3
})  # fmt: skip
add("stepnet.likelihood_ratio_gradient", lambda: {
    "problem": sn.SDE(lambda t, y, a: -a * y, lambda t, y, a: 1.0 + 0.0 * y, [1.0], SPAN, (0.5,)),
    "payoff": lambda y: y[0], "paths": 20, "steps": 4,
})  # fmt: skip
add("stepnet.LikelihoodRatioGradient", lambda: {
    "value": 1.0, "args": np.ones(1), "value_error": 0.1, "args_error": np.ones(1), "paths": 9
})  # fmt: skip
add(
    "stepnet.EnsembleGradient",
    lambda: {"value": np.ones(2), "y0": np.ones((2, 2)), "args": np.ones((2, 1)), "rung": "lanes"},
)
add_methods(
    "stepnet.EnsembleGradient",
    lambda: sn.EnsembleGradient(np.ones(2), np.ones((2, 2)), np.ones((2, 1)), "lanes"), sum=dict, mean=dict,
    standard_errors=dict,
)  # fmt: skip
add("stepnet.tangent", lambda: {"problem": decaying(), "scheme": "rk4", "y0": [1.0, 0.0], "steps": 3})
add("stepnet.jacobian", lambda: {"problem": decaying(), "scheme": "rk4", "steps": 3})
add("stepnet.hvp", lambda: {"problem": decaying(), "scheme": "rk4", "loss": squares, "y0": [1.0, 0.0], "steps": 3})
add("stepnet.SolveFailed", lambda: {"/0": solution()})
add("stepnet.Interrupted", lambda: {"/0": solution()})
add("stepnet.TrainingFailed", lambda: {"/0": run()})
add("stepnet.TrainingInterrupted", lambda: {"/0": run()})
add("stepnet.SchemeError", lambda: {"/0": "text"})
add("stepnet.UnknownName", lambda: {"what": "scheme", "name": "rk5", "known": ["rk4"]})
add("stepnet.NoDerivative", lambda: {"/0": "text"})
add("stepnet.StiffnessWarning", lambda: {"/0": "text"})
add("stepnet.AdjointWarning", lambda: {"/0": "text"})
add("stepnet.MonteCarloWarning", lambda: {"/0": "text"})

# ---- tensors --------------------------------------------------------------------------------------------------------

for name in ("AntisymmetricBlock", "HamiltonianBlock", "HyperbolicBlock", "ParabolicBlock", "ResidualBlock"):
    add(f"stepnet.torch.{name}", lambda: {"K": 4, "steps": 2})
add("stepnet.torch.certificate", lambda: {"module": snt.from_net(net()), "x": RNG_X, "limit": 5.0, "iterations": 2})
add("stepnet.torch.ODEBlock", lambda: {"field": tensor_decay, "scheme": "rk4", "steps": 2})
add("stepnet.torch.SolveBlock", lambda: {"func": tensor_decay, "scheme": "rk4", "steps": 2})
add_methods(
    "stepnet.torch.SolveBlock", lambda: snt.SolveBlock(tensor_decay, "rk4", 2),
    forward=lambda: {"y": torch.ones(2, 3)}, extra_repr=dict,
)  # fmt: skip
add("stepnet.torch.SDEBlock", lambda: {"drift": tensor_decay, "diffusion": tensor_decay, "steps": 2})
add("stepnet.torch.SDESolveBlock", lambda: {"drift": tensor_decay, "diffusion": tensor_decay, "steps": 2})
add_methods(
    "stepnet.torch.SDESolveBlock", lambda: snt.SDESolveBlock(tensor_decay, tensor_decay, steps=2),
    forward=lambda: {"y": torch.ones(2, 3)}, extra_repr=dict,
)  # fmt: skip
add("stepnet.torch.moment_matching", lambda: {"samples": torch.ones(2, 3, 1), "data": torch.ones(2, 4, 1)})
add("stepnet.torch.negative_elbo", lambda: {
    "ys": torch.ones(2, 3, 1), "data": torch.ones(2, 3, 1), "log_ratio": torch.ones(1, 3),
})  # fmt: skip
add("stepnet.torch.BatchSolution", lambda: {
    each: getattr(batch_solution(), each) for each in ("t", "y", "t_end", "y_end", "accepted", "rejected", "codes")
})  # fmt: skip
add_methods("stepnet.torch.BatchSolution", batch_solution, at=lambda: {"t": torch.tensor([0.5])})
add("stepnet.torch.FieldFunction", lambda: {"field": sn.fields.residual(sn.fields.dense(3))})
add_methods(
    "stepnet.torch.FieldFunction", field_function,
    forward=lambda: {"t": 0.5, "y": torch.ones(2, 3)}, reset_parameters=dict,
)  # fmt: skip
add("stepnet.torch.LayerBlock", lambda: {"block": block()})
add_methods(
    "stepnet.torch.LayerBlock", layer_block, forward=lambda: {"y": torch.ones(2, 3)}, reset_parameters=dict,
    way=lambda: {"y": torch.ones(2, 3)},
    run_reference=lambda: {"y": torch.ones(2, 3), "tensors": tuple(layer_block().parameters()), "memory": "all"},
)  # fmt: skip
add("stepnet.torch.LayerChain", lambda: {"chain": sn.fields.affine(sn.fields.dense(3))})
add_methods(
    "stepnet.torch.LayerChain", layer_chain, forward=lambda: {"x": torch.ones(2, 3)}, reset_parameters=dict,
    run_reference=lambda: {"x": torch.ones(2, 3), "tensors": tuple(layer_chain().parameters())},
)  # fmt: skip
add("stepnet.torch.NetModule", lambda: {"net": net()})
add_methods(
    "stepnet.torch.NetModule", module, extra_repr=dict, forward=lambda: {"x": pairs()}, in_order=dict,
    named_modules=dict, net=dict, put=lambda: {"theta": net().theta}, reset_parameters=dict, stages=dict,
    way=lambda: {"x": pairs()}, run_reference=lambda: {"x": pairs(), "tensors": module().in_order(), "memory": "all"},
)  # fmt: skip
add("stepnet.torch.Partitioned", lambda: {"dq": tensor_decay, "dp": tensor_decay})
add("stepnet.torch.SecondOrder", lambda: {"acceleration": tensor_decay})
add("stepnet.torch.Split", lambda: {"parts": (tensor_decay, tensor_decay)})
for name, parts in (("Partitioned", 2), ("SecondOrder", 2), ("Split", 1)):
    build = lambda name=name: public(f"stepnet.torch.{name}")(**CALLS[f"stepnet.torch.{name}"]()[1])
    add_methods(
        f"stepnet.torch.{name}", build,
        whole=lambda parts=parts: {"t": torch.tensor(0.0), "y": torch.ones(2, 3)[:parts]}
    )  # fmt: skip
add("stepnet.torch.from_net", lambda: {"net": net()})
add("stepnet.torch.method_names")
tensor_problem = lambda: {
    "func": tensor_decay,
    "y0": torch.ones(3),
    "t": torch.tensor([0.0, 0.5, 1.0]),
    "rtol": 1e-3,
    "atol": 1e-6,
}
add("stepnet.torch.odeint", lambda: dict(**tensor_problem(), method="dopri5"))
add("stepnet.torch.odeint_adjoint", lambda: dict(**tensor_problem(), method="dopri5", adjoint_params=()))
add(
    "stepnet.torch.odeint_dense",
    lambda: {"func": tensor_decay, "y0": torch.ones(3), "t0": 0.0, "t1": 1.0, "rtol": 1e-3},
)
add("stepnet.torch.odeint_event", lambda: {
    "func": tensor_decay, "y0": torch.ones(3), "t0": torch.tensor(0.0), "event_fn": tensor_crossing
})  # fmt: skip
tensor_equation = lambda: {
    "sde": TensorGBM(), "y0": torch.ones(3, 2), "ts": [0.0, 0.5, 1.0], "dt": 0.25, "rtol": 0.1, "atol": 0.1,
    "dt_min": 0.05,
}  # fmt: skip
add("stepnet.torch.sde_method_names")
add("stepnet.torch.sdeint", lambda: dict(**tensor_equation(), method="euler"))
add("stepnet.torch.sdeint_adjoint", lambda: dict(**tensor_equation(), method="euler", adjoint_params=()))
add("stepnet.torch.BaseSDE", lambda: {"noise_type": "diagonal", "sde_type": "ito"})
add("stepnet.torch.SDEIto", lambda: {"noise_type": "diagonal"})
add("stepnet.torch.SDEStratonovich", lambda: {"noise_type": "diagonal"})
add("stepnet.torch.BrownianInterval", lambda: {"t0": 0.0, "t1": 1.0, "size": (3, 2), "entropy": 1, "levels": 8})
add("stepnet.torch.BrownianPath", lambda: {"t0": 0.0, "w0": torch.zeros(3, 2)})
add("stepnet.torch.BrownianTree", lambda: {"t0": 0.0, "w0": torch.zeros(3, 2)})
add("stepnet.torch.brownian_interval_like", lambda: {"y": torch.zeros(3, 2), "t0": 0.0, "t1": 1.0})
for kind, build in (
    ("BrownianInterval", lambda: snt.BrownianInterval(size=(3, 2), entropy=1)),
    ("BrownianPath", lambda: snt.BrownianPath(0.0, torch.zeros(3, 2), entropy=1)),
    ("BrownianTree", lambda: snt.BrownianTree(0.0, torch.zeros(3, 2), entropy=1)),
):
    first = "ta" if kind == "BrownianInterval" else "t"
    times = lambda first=first: {first: 0.25, "tb": 0.5}
    add_methods(f"stepnet.torch.{kind}", build, size=dict, __call__=times)
CALLS["stepnet.torch.over_ranks"] = lambda: (with_a_group(snt.over_ranks), {"/0": doubled, "/1": [1.0, -2.0]})
add("stepnet.torch.recognised", lambda: {"func": tensor_decay})
add("stepnet.torch.solve", lambda: {
    "func": tensor_decay, "y0": torch.ones(2, 3), "t": torch.tensor([0.0, 1.0]), "rtol": 1e-3, "atol": 1e-6
})  # fmt: skip

# ---- checkpoints ----------------------------------------------------------------------------------------------------

add("stepnet.checkpoints.Action", lambda: {"kind": sn.checkpoints.Kind(0), "start": 0, "stop": 1, "slot": 0})
add("stepnet.checkpoints.Online", lambda: {"slots": 2})
add_methods("stepnet.checkpoints.Online", online, step=dict, finish=dict)
add("stepnet.checkpoints.Schedule", lambda: {"name": "mine", "n_steps": 5, "slots": 2, "actions": schedule().actions})
add_methods("stepnet.checkpoints.Schedule", schedule, draw=dict)
add("stepnet.checkpoints.TwoLevel", lambda: {"period": 2, "slots": 2})
add_methods("stepnet.checkpoints.TwoLevel", two_level, step=dict, finish=dict)
for name in ("binomial", "binomial_advances", "mixed", "mixed_evaluations", "repetitions", "uniform"):
    add(f"stepnet.checkpoints.{name}", lambda: {"n_steps": 5, "slots": 2})
add("stepnet.checkpoints.execute", lambda: {"schedule": schedule(), "run": QuietRun()})
add("stepnet.checkpoints.longest", lambda: {"slots": 2, "repetitions": 3})
add("stepnet.checkpoints.multistage", lambda: {"n_steps": 5, "memory_slots": 1, "disk_slots": 1})
add("stepnet.checkpoints.online", lambda: {"slots": 2})
add("stepnet.checkpoints.store_all", lambda: {"n_steps": 5})
add("stepnet.checkpoints.two_level", lambda: {"period": 2, "slots": 2})
add("stepnet.checkpoints.two_level_advances", lambda: {"n_steps": 5, "period": 2, "slots": 2})

# ---- operators and equations ----------------------------------------------------------------------------------------

GRID = sn.operators.Grid((8, 6), 0.0, 1.0, boundary=["neumann", "periodic"])
LINE = sn.operators.Grid(8, 0.0, 1.0)
FIELD = np.ones((8, 6))


def square_flux(u, axis):
    return 0.5 * u * u


def square_speeds(u, axis):
    return u, u


def constant_rate(t, y):
    return 0.1


def flow(t, y, h):
    return y


def plane_sde(n: int) -> sn.SDE:
    return sn.SDE(lambda t, y: -y, lambda t, y: 0.5 + 0.0 * y, np.zeros(n), SPAN)


def plane_net() -> sn.nets.Net:
    return sn.nets.resnet(None, 1, width=2, steps=3)


add("stepnet.operators.Grid", lambda: {
    "shape": (8, 6), "lower": 0.0, "upper": (1.0, 2.0), "boundary": "periodic", "centring": "cell"
})  # fmt: skip
add_methods("stepnet.operators.Grid", lambda: GRID, find_axis=lambda: {"axis": 0}, make_homogeneous=dict,
            find_side_position=lambda: {"axis": 0, "side": 0})  # fmt: skip
add("stepnet.operators.Boundary", lambda: {"value_weight": 1.0, "slope_weight": 0.5, "value": 0.0})
add("stepnet.operators.dirichlet", lambda: {"value": 1.0})
add("stepnet.operators.neumann", lambda: {"slope": 1.0})
add("stepnet.operators.robin", lambda: {"value_weight": 1.0, "slope_weight": 0.5, "value": 0.0})
add("stepnet.operators.DifferenceStencil", lambda: {
    "derivative": 2, "order": 2, "offsets": (-1, 0, 1), "weights": (1.0, -2.0, 1.0)
})  # fmt: skip
add("stepnet.operators.build_stencil", lambda: {"derivative": 2, "order": 4})
add("stepnet.operators.fit_stencil", lambda: {"derivative": 1, "offsets": (-2, -1, 0)})
add("stepnet.operators.AxisStencil", lambda: {
    "axis": 0, "stencil": sn.operators.build_stencil(2), "factor": 1.0
})  # fmt: skip
add("stepnet.operators.StencilOperator", lambda: {
    "grid": GRID, "terms": [sn.operators.AxisStencil(0, sn.operators.build_stencil(2))]
})  # fmt: skip
add("stepnet.operators.StackedOperator", lambda: {"parts": [sn.operators.laplacian(GRID)]})
add("stepnet.operators.SummedOperator", lambda: {"parts": [sn.operators.laplacian(GRID)]})
add("stepnet.operators.ComposedOperator", lambda: {
    "outer": sn.operators.laplacian(GRID), "inner": sn.operators.laplacian(GRID)
})  # fmt: skip
add("stepnet.operators.derivative", lambda: {"grid": GRID, "axis": 0, "derivative": 1, "order": 2})
for name in ("laplacian", "gradient", "divergence", "biharmonic"):
    add(f"stepnet.operators.{name}", lambda: {"grid": GRID, "order": 2})
add("stepnet.operators.spectral_derivative", lambda: {"grid": LINE, "axis": 0, "derivative": 1})
add("stepnet.operators.spectral_laplacian", lambda: {"grid": LINE})
add("stepnet.operators.SpectralOperator", lambda: {"grid": LINE, "symbol": np.ones(8)})
add("stepnet.operators.VariableDiffusion", lambda: {"grid": GRID})
add("stepnet.operators.Upwind", lambda: {"grid": GRID, "order": 3})
add("stepnet.operators.ConservationLaw", lambda: {
    "grid": LINE, "flux": square_flux, "speeds": square_speeds, "reconstruction": "muscl", "numerical_flux": "hll"
})  # fmt: skip
add_methods(
    "stepnet.operators.StencilOperator", lambda: sn.operators.laplacian(GRID), __call__=lambda: {"u": FIELD},
    transpose=lambda: {"w": FIELD}, matrix=dict, find_offset=lambda: {"t": 0.0}, find_axis_matrix=lambda: {"i": 0},
)  # fmt: skip
add_methods(
    "stepnet.operators.StackedOperator", lambda: sn.operators.gradient(GRID), __call__=lambda: {"u": FIELD},
    transpose=lambda: {"w": np.ones((2, 8, 6))}, matrix=dict, find_offset=lambda: {"t": 0.0},
)  # fmt: skip
add_methods(
    "stepnet.operators.SummedOperator", lambda: sn.operators.divergence(GRID),
    __call__=lambda: {"u": np.ones((2, 8, 6))}, transpose=lambda: {"w": FIELD}, matrix=dict,
)  # fmt: skip
add_methods(
    "stepnet.operators.ComposedOperator", lambda: sn.operators.biharmonic(GRID), __call__=lambda: {"u": FIELD},
    transpose=lambda: {"w": FIELD}, matrix=dict, find_offset=lambda: {"t": 0.0},
)  # fmt: skip
add_methods(
    "stepnet.operators.SpectralOperator", lambda: sn.operators.spectral_laplacian(LINE),
    __call__=lambda: {"u": np.ones(8)}, transpose=lambda: {"w": np.ones(8)}, matrix=dict,
)  # fmt: skip
add_methods(
    "stepnet.operators.VariableDiffusion", lambda: sn.operators.VariableDiffusion(GRID),
    __call__=lambda: {"u": FIELD, "k": FIELD},
    transpose=lambda: {"w": FIELD, "k": FIELD}, matrix=lambda: {"k": FIELD},
)  # fmt: skip
add_methods(
    "stepnet.operators.Upwind", lambda: sn.operators.Upwind(GRID),
    __call__=lambda: {"u": FIELD, "velocity": np.array([1.0, -0.5])},
    transpose=lambda: {"w": FIELD, "velocity": [1.0, -0.5]}, matrix=lambda: {"velocity": [1.0, -0.5]},
    find_axis_matrix=lambda: {"axis": 0, "side": 1},
)  # fmt: skip
add_methods(
    "stepnet.operators.ConservationLaw", lambda: sn.operators.ConservationLaw(LINE, square_flux, square_speeds),
    __call__=lambda: {"u": np.ones(8)},
)  # fmt: skip
add("stepnet.equations.heat", lambda: {"grid": GRID, "u0": FIELD, "t_span": SPAN, "diffusivity": 0.1})
add(
    "stepnet.equations.add_boundary_data",
    lambda: {
        "problem": sn.equations.heat(
            sn.operators.Grid(8, boundary=sn.operators.dirichlet(lambda t, g: g)), np.ones(8), SPAN
        ),
        "data": (2.0,),
    },
)
add("stepnet.equations.diffusion", lambda: {"grid": GRID, "u0": FIELD, "t_span": SPAN, "diffusivity": FIELD})
add("stepnet.equations.wave", lambda: {"grid": GRID, "u0": FIELD, "v0": FIELD, "t_span": SPAN, "speed": 1.0})
add("stepnet.equations.transport", lambda: {"grid": GRID, "u0": FIELD, "t_span": SPAN, "velocity": [1.0, 0.5]})
add("stepnet.equations.advection_diffusion", lambda: {
    "grid": GRID, "u0": FIELD, "t_span": SPAN, "velocity": [1.0, 0.5], "diffusivity": 0.1
})  # fmt: skip
add("stepnet.equations.burgers", lambda: {"grid": GRID, "u0": FIELD, "t_span": SPAN, "viscosity": 0.1})
add("stepnet.equations.gray_scott", lambda: {
    "grid": GRID, "u0": np.ones((2, 8, 6)), "t_span": SPAN, "diffusivities": (2e-5, 1e-5), "feed": 0.04, "kill": 0.06
})  # fmt: skip
add("stepnet.equations.allen_cahn", lambda: {"grid": GRID, "u0": FIELD, "t_span": SPAN, "width": 0.1})
add("stepnet.equations.split_diffusion", lambda: {"problem": sn.equations.heat(GRID, FIELD, SPAN, 0.1)})
add("stepnet.equations.poisson", lambda: {"grid": GRID, "source": np.zeros((8, 6))})
add("stepnet.equations.find_largest_step", lambda: {
    "problem": sn.equations.heat(GRID, FIELD, SPAN), "scheme": "rk4"
})  # fmt: skip
add("stepnet.equations.fitzhugh_nagumo", lambda: {
    "grid": GRID, "u0": np.ones((2, 8, 6)), "t_span": SPAN, "diffusivity": 0.1, "rate": 0.08, "a": 0.7, "b": 0.8,
    "current": 0.1,
})  # fmt: skip
add("stepnet.equations.euler", lambda: {
    "grid": GRID, "density": FIELD, "velocity": np.zeros((2, 8, 6)), "pressure": FIELD, "t_span": SPAN, "gamma": 1.4
})  # fmt: skip
add("stepnet.equations.shallow_water", lambda: {
    "grid": GRID, "depth": FIELD, "velocity": np.zeros((2, 8, 6)), "t_span": SPAN, "gravity": 9.81
})  # fmt: skip
add("stepnet.equations.acoustics", lambda: {
    "grid": GRID, "pressure": FIELD, "velocity": np.zeros((2, 8, 6)), "t_span": SPAN, "speed": 1.0
})  # fmt: skip
add("stepnet.equations.fokker_planck", lambda: {"grid": LINE, "u0": np.ones(8), "t_span": SPAN, "sde": plane_sde(1)})
add("stepnet.equations.backward_kolmogorov", lambda: {
    "grid": LINE, "terminal": np.ones(8), "t_span": SPAN, "sde": plane_sde(1), "potential": constant_rate,
    "source": constant_rate,
})  # fmt: skip
add("stepnet.equations.schroedinger", lambda: {
    "grid": LINE, "u0": np.ones(8), "t_span": SPAN, "potential": np.zeros(8), "interaction": 1.0
})  # fmt: skip
add("stepnet.equations.characteristic_flow", lambda: {"grid": LINE, "velocity": [1.0], "order": 3})
add("stepnet.equations.heat_flow", lambda: {"grid": LINE, "diffusivity": 0.1})
add("stepnet.operators.map_chunks", lambda: {
    "build": sn.operators.laplacian, "grid": LINE, "u": dask.array.ones(8, chunks=4), "reach": 1
})  # fmt: skip
add("stepnet.fields.find_kernel_derivatives", lambda: {"kernels": np.ones((3, 3)), "spacing": 0.5})
add("stepnet.fields.build_kernel", lambda: {"coefficients": np.ones((3, 3)), "spacing": 0.5})
add("stepnet.Linear", lambda: {"operator": [[-1.0, 0.5], [0.0, -2.0]]})
add_methods(
    "stepnet.Linear", lambda: sn.Linear([[-1.0, 0.5], [0.0, -2.0]]),
    __call__=lambda: {"t": 0.0, "y": np.ones(2)},
)  # fmt: skip
add("stepnet.Flow", lambda: {"fun": flow})
add("stepnet.track", lambda: {
    "problem": ode(), "scheme": "rk4", "trackers": [sn.trackers.SteadyState(1e-9)], "steps": 4, "every": 2
})  # fmt: skip
for name, how in (
    ("Progress", lambda: {"t_end": 1.0}),
    ("SteadyState", lambda: {"tolerance": 1e-6}),
    ("Conservation", lambda: {"functional": np.sum, "tolerance": 10.0}),
    ("StoreStates", lambda: {"target": "states.npz"}),
):
    add(f"stepnet.solving.trackers.{name}", how)
    add_methods(
        f"stepnet.solving.trackers.{name}", lambda name=name, how=how: getattr(sn.trackers, name)(**how()), close=dict,
        take=lambda: {"t": 0.5, "y": np.ones(8)},
    )  # fmt: skip
for name, how in (("GIF", lambda: {"path": "run.gif"}), ("LivePlot", lambda: {"pause": 0.001})):
    add(f"stepnet.plots.{name}", how)
    add_methods(
        f"stepnet.plots.{name}", lambda name=name, how=how: getattr(sn.plots, name)(**how()), close=dict,
        take=lambda: {"t": 0.5, "y": np.ones(8)},
    )  # fmt: skip
add("stepnet.torch.tensor_operator", lambda: {"operator": sn.operators.laplacian(GRID)})

# ---- noise ----------------------------------------------------------------------------------------------------------

add("stepnet.noise.BrownianPath", lambda: {"seed": 1, "path": 2, "t_span": SPAN, "cells": 4, "dimension": 2})
add_methods(
    "stepnet.noise.BrownianPath", lambda: sn.noise.BrownianPath(dimension=2), __call__=lambda: {"t": 0.3},
    increment=lambda: {"a": 0.1, "b": 0.2}, increment_and_area=lambda: {"a": 0.1, "b": 0.2},
    increments=lambda: {"times": [0.1, 0.2]}, levy_areas=lambda: {"times": [0.1, 0.2]},
)  # fmt: skip
add("stepnet.noise.NoiseGrid", lambda: {"t_span": SPAN, "cells": 4, "levels": 3})
add_methods("stepnet.noise.NoiseGrid", lambda: sn.noise.NoiseGrid(SPAN), locate=lambda: {"times": [0.1, 0.2]})
add("stepnet.noise.brownian", lambda: {"seed": 1, "path": [0, 1], "t0": 0.1, "t1": 0.2})
add("stepnet.noise.correlate", lambda: {
    "sde": sn.SDE(decay, half, [1.0, 0.5], SPAN), "correlation": [[1.0, 0.5], [0.5, 1.0]]
})  # fmt: skip
add("stepnet.noise.three_point", lambda: {"seed": 1, "path": [0, 1], "step": 3})
add("stepnet.noise.two_point", lambda: {"seed": 1, "path": [0, 1], "step": 3})

# ---- derivatives, stability -----------------------------------------------------------------------------------------

add("stepnet.gradients.derivatives.jacobian", lambda: {"problem": decaying()})
at = lambda **more: lambda: dict(t=0.0, y=[1.0, 0.5], **more)
add_methods(
    "stepnet.engines.numba_engine.derivatives.jacobian.RHSJacobian", jacobian, dense=at(), sparse=at(), banded=at(),
    jvp=at(v=[1.0, 0.0]), vjp=at(w=[1.0, 0.0]),
)  # fmt: skip


def folding() -> sn.ODE:
    return sn.ODE(lambda t, y, a: a - y * y, [1.0], SPAN, (1.0,))


def convergence_study() -> sn.stability.ConvergenceStudy:
    return sn.stability.convergence_study(ode(), ["rk4"], steps=(5, 10))


def work_precision() -> sn.stability.WorkPrecision:
    return sn.stability.work_precision(ode(), ["dopri5"], tolerances=(1e-3,), repeats=1)


add("stepnet.stability.AdjointSafety", lambda: {
    "return_error": 0.0, "growth": 1.0, "relative_error": 0.0, "angle": 0.0, "is_safe": True, "verdict": "safe"
})  # fmt: skip
add("stepnet.stability.adjoint_safety", lambda: {"problem": decaying(), "scheme": "rk4", "loss": squares, "steps": 3})

add("stepnet.stability.BlockCertificate", lambda: {
    "name": "blocks.0", "h": 0.1, "steps": np.ones(2), "upper": 1.0, "lower": 0.5, "measured": 0.9, "safe_h": 0.1,
    "numerical_ranges": np.zeros((2, 3)),
})  # fmt: skip
add("stepnet.stability.Certificate", lambda: {
    "blocks": (), "lipschitz": 1.0, "measured": 1.0, "is_stable": True, "verdict": "stable"
})  # fmt: skip
add(
    "stepnet.stability.certificate",
    lambda: {"net": net(), "x": RNG_X, "box": (-9.0, 9.0), "limit": 5.0, "iterations": 2},
)
add("stepnet.stability.LyapunovSpectrum", lambda: {"times": np.arange(2.0), "rates": np.ones((1, 2))})
add("stepnet.stability.lyapunov", lambda: {
    "problem": ode(), "scheme": "rk4", "every": 0.5, "transient": 0.5, "exponents": 1, "steps": 4
})  # fmt: skip
add("stepnet.stability.MeanSquareRegion", lambda: {
    "name": "milstein", "calculus": "ito", "drift": [-1.0, 0.0], "diffusion": [0.0], "growth": np.ones((1, 2))
})  # fmt: skip
add("stepnet.stability.Region", lambda: {
    "name": "euler", "equation": "y' = lambda y", "real": [-1.0, 0.0], "imaginary": [0.0],
    "amplification": np.ones((1, 2)), "boundary": np.ones((1, 4)),
})  # fmt: skip
add("stepnet.stability.SchemeReport", lambda: {
    **sn.stability.report("rk4").as_dict(), "embedded_orders": (), "numerator": (1.0,), "denominator": (1.0,)
})  # fmt: skip
add_methods(
    "stepnet.stability.SchemeReport", lambda: sn.stability.report("rk4"), as_dict=dict, as_json=dict
)  # fmt: skip
add("stepnet.stability.mean_square_region", lambda: {
    "scheme": "milstein", "drift": [-1.0, 0.0], "diffusion": [0.0, 0.5]
})  # fmt: skip
add("stepnet.stability.region", lambda: {
    "scheme": "rk4", "real": [-1.0, 0.0], "imaginary": [0.0, 1.0], "resolution": 5, "angles": 20
})  # fmt: skip
add("stepnet.stability.DepthRefinement", lambda: {
    "change": 0.1, "second_change": 0.05, "scheme_change": 0.1, "feature_change": 0.1, "variation": 0.1,
    "scheme": "rk4", "accuracies": (1.0, 1.0, 1.0), "is_ode": True, "verdict": "an ODE",
})  # fmt: skip
add("stepnet.stability.depth_refinement", lambda: {"net": net(), "x": RNG_X, "labels": LABELS, "tolerance": 0.1})
add(
    "stepnet.stability.GradientNorms",
    lambda: {"layers": ("blocks.0.0",), "states": np.ones(2), "gradients": np.ones(2)},
)
add("stepnet.stability.gradient_norms", lambda: {"net": net(), "x": RNG_X})
add("stepnet.stability.RobustnessCurves", lambda: {
    "radii": np.array([0.0, 1.0]), "attacks": ("fgsm",), "accuracies": np.ones((1, 2))
})  # fmt: skip
add("stepnet.stability.robustness", lambda: {
    "model": net(), "x": RNG_X, "labels": LABELS, "radii": [0.0, 0.1], "attacks": ["pgd"], "steps": 2, "paths": 2
})  # fmt: skip
add("stepnet.stability.report", lambda: {"scheme": "rk4"})
add("stepnet.stability.Branch", lambda: {
    "argument": "a", "parameters": np.zeros(2), "states": np.zeros((2, 1)), "eigenvalues": -np.ones((2, 1)),
    "special": (),
})  # fmt: skip
add("stepnet.stability.SpecialPoint", lambda: {"kind": "fold", "parameter": 0.0, "y": np.zeros(1), "frequency": 0.0})
add("stepnet.stability.continuation", lambda: {
    "problem": folding(), "argument": "a", "end": 0.0, "y": [1.0], "step": 0.5, "points": 5
})  # fmt: skip
add("stepnet.stability.Equilibrium", lambda: {"y": np.zeros(1), "eigenvalues": -np.ones(1), "kind": "stable node"})
add("stepnet.stability.equilibrium", lambda: {"problem": ode(), "y": [0.1, 0.1], "t": 0.0, "iterations": 9})
add("stepnet.stability.FloquetMultipliers", lambda: {
    "period": 1.0, "monodromy": np.eye(1), "multipliers": np.ones(1), "return_error": 0.0
})  # fmt: skip
add("stepnet.stability.floquet", lambda: {
    "problem": ode(t_span=(0.0, 2 * np.pi)), "scheme": "rk4", "steps": 50, "tolerance": 1e-3
})  # fmt: skip
add("stepnet.stability.JacobianSpectra", lambda: {
    "scheme": "rk4", "times": np.zeros(1), "h": np.ones(1), "eigenvalues": -np.ones((1, 1)), "log_norms": np.ones(1),
    "amplification": np.ones((1, 1)),
})  # fmt: skip
add("stepnet.stability.spectra", lambda: {"problem": ode(), "scheme": "rk4", "steps": 4, "samples": 2})
add("stepnet.stability.InvariantDrift", lambda: {"name": "energy", "times": np.arange(3.0), "errors": np.zeros(3)})
add("stepnet.stability.drift", lambda: {
    "problem": ode(), "scheme": "rk4", "invariants": energy, "steps": 5, "samples": 3
})  # fmt: skip
add("stepnet.stability.reversibility_error", lambda: {"problem": ode(), "scheme": "rk4", "steps": 4})
add("stepnet.stability.symplecticity_error", lambda: {
    "problem": sn.SecondOrder(force, [1.0], [0.0], SPAN), "scheme": "verlet", "steps": 4
})  # fmt: skip
add("stepnet.stability.LyapunovField", lambda: {"x": [0.0, 1.0], "y": [0.0], "values": np.zeros((1, 2))})
add("stepnet.stability.lyapunov_field", lambda: {
    "problem": ode(), "x": [0.0, 1.0], "y": [0.0], "scheme": "rk4", "components": (0, 1), "steps": 3
})  # fmt: skip
add("stepnet.stability.PoincareSection", lambda: {"times": np.zeros(1), "points": np.zeros((1, 2))})
add("stepnet.stability.poincare_section", lambda: {
    "problem": ode(), "section": crossing, "scheme": "dopri5", "direction": 0, "transient": 0.1
})  # fmt: skip
add("stepnet.stability.ConvergenceRow", lambda: {
    "scheme": "euler", "order": 1, "steps": (10, 20), "errors": (0.2, 0.1)
})  # fmt: skip
add("stepnet.stability.ConvergenceStudy", lambda: {"length": 1.0, "rows": ()})
add_methods("stepnet.stability.ConvergenceStudy", convergence_study, table=dict, as_csv=dict)
add("stepnet.stability.convergence_study", lambda: {
    "problem": ode(), "schemes": ["rk4"], "steps": (5, 10), "exact": [np.cos(1.0), -np.sin(1.0)]
})  # fmt: skip
add("stepnet.stability.WorkPrecisionRow", lambda: {
    "scheme": "rk4", "settings": (10.0,), "errors": (1e-4,), "evaluations": (40.0,), "seconds": (1e-5,)
})  # fmt: skip
add("stepnet.stability.WorkPrecision", lambda: {"rows": ()})
add_methods("stepnet.stability.WorkPrecision", work_precision, table=dict, as_csv=dict)
add("stepnet.stability.work_precision", lambda: {
    "problem": ode(), "schemes": ["dopri5"], "tolerances": (1e-3,), "steps": (5,), "exact": [0.5, -0.8], "repeats": 1
})  # fmt: skip

for kind, numbers in {
    "JacobianFrobenius": {"strength": 0.1, "probes": 2, "difference": 1e-3, "seed": 1},
    "KineticEnergy": {"strength": 0.1},
    "LogNorm": {"strength": 0.1, "margin": 0.1},
}.items():
    add(f"stepnet.training.{kind}", lambda numbers=numbers: numbers)
    add_methods(
        f"stepnet.training.{kind}", lambda kind=kind: getattr(sn.training, kind)(),
        at=lambda: {"net": sn.nets.resnet(2, 1, width=3, steps=2), "x": RNG_X},
    )  # fmt: skip
add("stepnet.training.SpectralProjection", lambda: {"optimiser": "adam", "places": ((0, 2, 2),), "bound": 1.0})
add_methods(
    "stepnet.training.SpectralProjection", lambda: sn.training.SpectralProjection("sgd", ((0, 1, 2),), 1.0),
    step=lambda: {"theta": np.ones(2), "gradient": np.ones(2), "slots": {}, "rate": 0.1, "count": 1},
    project=lambda: {"theta": np.ones(2)},
)  # fmt: skip
add("stepnet.training.spectral_projection", lambda: {
    "optimiser": "adam", "net": sn.nets.resnet(2, 1, width=3, steps=2), "bound": 1.0
})  # fmt: skip

# ---- estimators -----------------------------------------------------------------------------------------------------

small = {"net": "resnet", "width": 3, "steps": 2, "epochs": 1}
fit = lambda kind, y: lambda **settings: getattr(sn.estimators, kind)(**{**small, **settings}).fit(RNG_X, y)
CALLS["stepnet.estimators.NetClassifier"] = lambda: (
    fit("NetClassifier", LABELS), sn.estimators.NetClassifier(**small).get_params()
)  # fmt: skip
CALLS["stepnet.estimators.NetRegressor"] = lambda: (
    fit("NetRegressor", RNG_X[:, 0]), sn.estimators.NetRegressor(**small).get_params()
)  # fmt: skip
rows = lambda: {"X": RNG_X}
add_methods(
    "stepnet.estimators.NetClassifier", fitted, decision_function=rows, features=rows, outputs=rows, predict=rows,
    predict_proba=rows, save=lambda: {"path": "stored"},
)  # fmt: skip
add_methods(
    "stepnet.estimators.NetClassifier", lambda: sn.estimators.NetClassifier(**small),
    fit=lambda: {"X": RNG_X, "y": LABELS}, load=lambda: {"path": stored(fitted().save)},
)  # fmt: skip
add_methods(
    "stepnet.estimators.NetRegressor", fitted_regressor, features=rows, outputs=rows, predict=rows,
    save=lambda: {"path": "stored"},
)  # fmt: skip
add_methods(
    "stepnet.estimators.NetRegressor", lambda: sn.estimators.NetRegressor(**small),
    fit=lambda: {"X": RNG_X, "y": RNG_X[:, 0]}, load=lambda: {"path": stored(fitted_regressor().save)},
)  # fmt: skip
CALLS["stepnet.estimators.FeynmanKacClassifier"] = lambda: (
    fit("FeynmanKacClassifier", LABELS), sn.estimators.FeynmanKacClassifier(**small, paths=3).get_params()
)  # fmt: skip
add_methods(
    "stepnet.estimators.FeynmanKacClassifier", fitted_with_noise, decision_function=rows,
    features=lambda: {"X": RNG_X, "block": 0, "path": 1}, outputs=lambda: {"X": RNG_X, "path": 1},
    predict=lambda: {"X": RNG_X, "abstain": True}, predict_proba=lambda: {"X": RNG_X, "return_interval": True},
    save=lambda: {"path": "stored"},
)  # fmt: skip
add_methods(
    "stepnet.estimators.FeynmanKacClassifier", lambda: sn.estimators.FeynmanKacClassifier(**small, paths=3),
    fit=lambda: {"X": RNG_X, "y": LABELS}, load=lambda: {"path": stored(fitted_with_noise().save)},
)  # fmt: skip
CALLS["stepnet.estimators.FeynmanKacRegressor"] = lambda: (
    fit("FeynmanKacRegressor", RNG_X[:, 0]), sn.estimators.FeynmanKacRegressor(**small, paths=3).get_params()
)  # fmt: skip
add_methods(
    "stepnet.estimators.FeynmanKacRegressor", fitted_noisy_regressor, features=lambda: {
        "X": RNG_X, "block": 0, "path": 1
    }, outputs=lambda: {"X": RNG_X, "path": 1}, predict=lambda: {"X": RNG_X, "return_interval": True},
    save=lambda: {"path": "stored"},
)  # fmt: skip
add_methods(
    "stepnet.estimators.FeynmanKacRegressor", lambda: sn.estimators.FeynmanKacRegressor(**small, paths=3),
    fit=lambda: {"X": RNG_X, "y": RNG_X[:, 0]}, load=lambda: {"path": stored(fitted_noisy_regressor().save)},
)  # fmt: skip
add("stepnet.estimators.NotStored", lambda: {"text": "text"})

# ---- fields ---------------------------------------------------------------------------------------------------------

dense = lambda: sn.fields.dense(3)
add(
    "stepnet.fields.Activation",
    lambda: {"name": "mine", "number": 0, "value": np.tanh, "derivative": np.cosh, "steepest": 1.0},
)
add("stepnet.fields.Attention", lambda: {"tokens": 2, "channels": 2})
add("stepnet.fields.Chain", lambda: {"layers": (sn.fields.Layer(dense()),)})
add("stepnet.fields.Depth", lambda: {"controls": 4, "degree": 1})
controls = lambda count: np.linspace(0.0, 1.0, count * 2).reshape(count, 2)
add_methods(
    "stepnet.fields.Depth", depth, basis=lambda: {"s": [0.1, 0.5]},
    refine=lambda: {"controls": controls(4), "new": sn.fields.Depth(7, 1)},
    roughness=lambda: {"controls": controls(4), "length": 1.0},
    stage_basis=lambda: {"s": np.array([0.1]), "middles": np.array([0.1])},
    values=lambda: {"controls": controls(4), "s": 0.5},
)  # fmt: skip
add("stepnet.fields.HeldWeights", lambda: {"controls": 3})
add_methods(
    "stepnet.fields.HeldWeights", held, refine=lambda: {"controls": controls(3), "new": sn.fields.HeldWeights(6)},
    roughness=lambda: {"controls": controls(3), "length": 1.0},
    stage_basis=lambda: {"s": np.array([0.1]), "middles": np.array([0.1])},
    values=lambda: {"controls": controls(3), "s": 0.5},
)  # fmt: skip
add("stepnet.fields.Diffusion", lambda: {"name": "mine", "scale": 0.5})
add("stepnet.fields.diffusion.constant", lambda: {"sigma": 0.5})
add("stepnet.fields.diffusion.multiplicative", lambda: {"axes": (3,), "sigma": 0.5})
add("stepnet.fields.diffusion.per_channel", lambda: {"axes": (3,), "sigma": 0.5})
add("stepnet.fields.diffusion.state_dependent", lambda: {"K": dense(), "sigma": 0.5})
add("stepnet.nets.SampleNoise", lambda: {"seed": 1})
add_methods(
    "stepnet.nets.SampleNoise", lambda: sn.nets.SampleNoise(1), find_cells=lambda: {"steps": 4},
    find_paths=lambda: {"x": np.ones((2, 3))}, find_seed=lambda: {"block": 1},
)  # fmt: skip
add("stepnet.fields.Field", lambda: {"name": "mine", "parts": (sn.fields.affine(dense()),)})
add_methods("stepnet.fields.Field", lambda: sn.fields.residual(dense()), chain=lambda: {"part": 0},
            find_chain=lambda: {"part": 0},
            with_diffusion=lambda: {"diffusion": sn.fields.diffusion.constant(0.1)})  # fmt: skip
add("stepnet.fields.Fixed", lambda: {"name": "mine", "channels": 1, "operator": sn.fields.resized(3, 3).operator})
add("stepnet.fields.Layer", lambda: {"connectivity": dense()})
add(
    "stepnet.fields.Mixing",
    lambda: {"name": "mine", "channels_in": 2, "channels_out": 2, "operators": dense().operators},
)
add("stepnet.fields.Normalisation", lambda: {"channels": 2})
add("stepnet.fields.Stencil", lambda: {"shape": (3,), "taps": (3,), "is_periodic": False})
add("stepnet.fields.activation", lambda: {"name": "tanh"})
for name in ("antisymmetric", "hamiltonian", "hyperbolic", "parabolic", "residual", "staggered"):
    add(f"stepnet.fields.{name}", lambda: {"K": dense()})
add("stepnet.fields.affine", lambda: {"K": dense()})
add("stepnet.fields.symmetric", lambda: {"K": dense()})
add("stepnet.fields.chained", lambda: {"chain": sn.fields.affine(dense())})
add("stepnet.fields.conv1d", lambda: {"length": 4, "channels_in": 2})
add("stepnet.fields.conv2d", lambda: {"shape": (4, 4), "channels_in": 2})
add("stepnet.fields.dense", lambda: {"n_in": 3})
add("stepnet.fields.equivariant", lambda: {"nodes": 3, "channels_in": 2})
add("stepnet.fields.graph", lambda: {"adjacency": ADJACENCY, "channels_in": 2})
add("stepnet.fields.mlp", lambda: {"widths": (3, 4, 3)})
add("stepnet.fields.nodewise", lambda: {"nodes": 3, "channels_in": 2})
add("stepnet.fields.pooling", lambda: {"shape": (4, 4), "channels": 2})
add("stepnet.fields.resized", lambda: {"n_in": 3, "n_out": 4})
add("stepnet.fields.two_layer", lambda: {"K1": dense(), "K2": dense()})

# ---- nets -----------------------------------------------------------------------------------------------------------

add("stepnet.nets.Block", lambda: {"field": sn.fields.residual(dense()), "scheme": "euler", "steps": 2})
add("stepnet.nets.Convergence", lambda: {"residuals": (0.1,), "is_converged": True, "sequential_steps": 1, "steps": 1})
add("stepnet.nets.Design", lambda: {"blocks": (block(),)})
add_methods("stepnet.nets.Design", design, stages=dict)
add("stepnet.nets.Linearised", lambda: {"size": 2, "outputs": np.ones(2), "push": np.copy, "pull": np.copy})
ones = lambda: np.ones(net().theta.size)
add_methods(
    "stepnet.nets.Linearised", lambda: net().linearise(RNG_X), gauss_newton=lambda: {"direction": ones()},
    pullback=lambda: {"outputs_bar": np.ones((6, 2))}, tangent=lambda: {"theta_dot": ones()},
)  # fmt: skip
add("stepnet.nets.MGRIT")
add_methods("stepnet.nets.MGRIT", sn.nets.MGRIT, steps=lambda: {"count": 8}, within=lambda: {"dtype": np.float64})
add("stepnet.nets.Net", lambda: {"design": design()})
x = lambda **more: lambda: dict(x=RNG_X, **more)
add_methods(
    "stepnet.nets.Net", net, __call__=x(), astype=lambda: {"dtype": np.float32}, features=x(), forward=x(),
    gauss_newton=lambda: {"x": RNG_X, "direction": ones()}, gradient=x(loss=squares_and_gradient), linearise=x(),
    parameter_gradient=x(loss=squares_and_gradient), problem=x(), put=lambda: {"theta": ones()},
    refine=dict, roughness=dict, save=lambda: {"path": "net.safetensors"},
    tangent=lambda: {"x": RNG_X, "theta_dot": ones()}, views=lambda: {"theta": ones()},
)  # fmt: skip
add("stepnet.nets.Net.load", lambda: {"path": stored(net().save, ".safetensors")})
add("stepnet.nets.load", lambda: {"path": stored(net().save, ".safetensors")})
add("stepnet.nets.NetGradient", lambda: {
    "value": 1.0, "theta": np.ones(2), "x": None, "outputs": np.ones(2), "design": design()
})  # fmt: skip
add("stepnet.nets.NetworkVelocity", lambda: {"net": plane_net()})
add_methods(
    "stepnet.nets.NetworkVelocity", lambda: sn.nets.NetworkVelocity(plane_net()),
    __call__=lambda: {"t": 0.5, "y": np.zeros((2, 4))}, sample=lambda: {"grid": GRID},
)  # fmt: skip
add("stepnet.nets.network_sde", lambda: {"net": plane_net(), "sigma": 0.1, "y0": [0.0, 1.0]})
add("stepnet.nets.network_pde", lambda: {"net": plane_net(), "sigma": 0.1, "grid": GRID})
add("stepnet.nets.NodeModel", lambda: {"net": sn.nets.node_net(ADJACENCY, 2, 2, 2, 2), "inputs": np.ones((3, 2))})
nodes = lambda **more: lambda: dict(nodes=np.arange(3), **more)
node_ones = lambda: np.ones(node_model().theta.size)
add_methods(
    "stepnet.nets.NodeModel", node_model, __call__=nodes(), features=nodes(),
    gauss_newton=lambda: {"nodes": np.arange(3), "direction": node_ones()}, gradient=nodes(loss=squares_and_gradient),
    put=lambda: {"theta": node_ones()}, refine=dict, roughness=dict, views=lambda: {"theta": node_ones()},
)  # fmt: skip
add("stepnet.nets.ParallelForward", lambda: {"outputs": np.ones(2), "states": (), "convergence": (), "error": 0.0})
add("stepnet.nets.ParallelGradient", lambda: {"gradient": None, "forward": (), "adjoint": (), "error": 0.0})
for name in (
    "antisymmetric",
    "hamiltonian",
    "hyperbolic",
    "leapfrog_net",
    "midpoint_net",
    "mlp",
    "parabolic",
    "resnet",
):
    add(f"stepnet.nets.{name}", lambda: {"inputs": 2, "outputs": 2, "width": 4, "steps": 2})
add("stepnet.nets.attention_net", lambda: {"tokens": 2, "channels": 2, "steps": 2})
add(
    "stepnet.nets.compose_net",
    lambda: {"field": sn.fields.residual(dense()), "scheme": "euler", "steps": 2, "inputs": 2, "outputs": 2},
)
add("stepnet.nets.graph_ode", lambda: {"adjacency": ADJACENCY, "channels": 2, "steps": 2})
deep = lambda: sn.nets.resnet(2, 2, 3, 8)
add("stepnet.nets.mgrit_forward", lambda: {"net": deep(), "x": RNG_X})
add("stepnet.nets.mgrit_gradient", lambda: {"net": deep(), "x": RNG_X, "loss": squares_and_gradient})
add("stepnet.nets.neural_ode", lambda: {"inputs": 2, "outputs": 2, "hidden": (3,), "steps": 2})
add("stepnet.nets.node_net", lambda: {"adjacency": ADJACENCY, "inputs": 2, "outputs": 2, "channels": 2, "steps": 2})
add("stepnet.nets.parabolic_cnn", lambda: {"shape": (4, 4), "channels": (2,), "steps": 2})
for name in snt.nets.__all__:
    CALLS[f"stepnet.torch.nets.{name}"] = lambda name=name: (
        getattr(snt.nets, name),
        CALLS[f"stepnet.nets.{name}"]()[1],
    )
add("stepnet.nets.losses.Expansion", lambda: {"value": 1.0, "slope": lambda: np.ones(2), "product": np.copy})
scores = lambda: {"outputs": RNG_X, "targets": np.zeros((6, 2))}
expansion = lambda: loss().at(**scores())
add_methods("stepnet.nets.losses.Expansion", expansion, curvature=lambda: {"v": np.ones((6, 2))})
add("stepnet.nets.losses.Loss", lambda: {
    each: getattr(loss(), each) for each in ("family", "formula", "read", "numbers", "reduction")
})  # fmt: skip
add_methods("stepnet.nets.losses.Loss", loss, at=scores)
add("stepnet.nets.losses.Meaning")
add_methods(
    "stepnet.nets.losses.Meaning", lambda: losses.get("cross_entropy").meaning,
    predict=lambda: {"outputs": RNG_X}, logits=lambda: {"outputs": RNG_X},
)  # fmt: skip
for name in (
    "barron", "binary_cross_entropy", "binary_focal", "cross_entropy", "distillation", "focal", "gaussian_nll", "huber",
    "kl", "mae", "mse", "names", "poisson", "quantile", "tukey",
):  # fmt: skip
    add(f"stepnet.nets.losses.{name}")
add("stepnet.nets.losses.get", lambda: {"name": "huber", "delta": 1.0})
add("stepnet.nets.losses.log_softmax", lambda: {"z": RNG_X})
add("stepnet.nets.losses.softmax", lambda: {"z": RNG_X})
add("stepnet.nets.penalties.Penalty", lambda: {"l1": 0.1})
add_methods(
    "stepnet.nets.penalties.Penalty", lambda: sn.nets.penalties.l1(0.1), at=lambda: {"weights": np.ones(3)},
    proximal=lambda: {"weights": np.ones(3), "step": 0.1},
)  # fmt: skip
for name in ("elastic_net", "l1", "l2", "names", "none"):
    add(f"stepnet.nets.penalties.{name}")
add("stepnet.nets.penalties.get", lambda: {"name": "l2", "strength": 0.1})

# ---- montecarlo -----------------------------------------------------------------------------------------------------

sde = lambda: sn.SDE(half, half, [1.0, 0.5], SPAN)
first_of = lambda y: y[0]
estimate = lambda: {
    "value": 1.0, "standard_error": 0.1, "interval": (0.8, 1.2), "confidence": 0.95, "paths": 4, "steps": 2, "cost": 8,
    "sampling": "plain", "exploded": 0, "rung": "lanes", "reason": "", "run_time": 0.1, "message": "complete",
}  # fmt: skip
add("stepnet.montecarlo.Estimate", estimate)
level = lambda: {
    "steps": 2, "samples": 4, "mean": 1.0, "variance": 0.1, "kurtosis": 3.0, "fine_mean": 1.0, "fine_variance": 0.1,
    "cost": 2.0, "consistency": 0.0,
}  # fmt: skip
add("stepnet.montecarlo.Level", level)
levels = lambda: {
    "value": 1.0, "standard_error": 0.1, "bias": 0.1, "error": 0.15, "interval": (0.8, 1.2), "confidence": 0.95,
    "levels": (sn.montecarlo.Level(**level()),), "alpha": 1.0, "beta": 1.0, "gamma": 1.0, "cost": 8.0,
    "plain_cost": 16.0, "run_time": 0.1, "message": "complete",
}  # fmt: skip
add("stepnet.montecarlo.MultilevelEstimate", levels)
add_methods("stepnet.montecarlo.MultilevelEstimate", lambda: sn.montecarlo.MultilevelEstimate(**levels()), table=dict)
add("stepnet.montecarlo.feynman_kac", lambda: {
    "sde": sde(), "terminal": first_of, "steps": 2, "paths": 32, "max_paths": 10_000,
})  # fmt: skip
add("stepnet.montecarlo.feynman_kac_gradient", lambda: {"sde": sde(), "terminal": first_of, "steps": 2, "paths": 32})
add("stepnet.montecarlo.GradientEstimate", lambda: {
    name: sn.montecarlo.Estimate(**estimate()) for name in ("value", "x", "args")
})  # fmt: skip
add("stepnet.montecarlo.RandomStart", lambda: {"quantile": doubled})
add("stepnet.montecarlo.multilevel", lambda: {
    "sde": sde(), "terminal": first_of, "error": 0.05, "max_cost": 1e7, "max_levels": 6,
})  # fmt: skip
add("stepnet.montecarlo.randomised_multilevel", lambda: {
    "sde": sde(), "terminal": first_of, "error": 0.05, "max_cost": 1e7,
})  # fmt: skip

# ---- plots ----------------------------------------------------------------------------------------------------------


def axes():
    import matplotlib.pyplot as plt

    plt.close("all")
    return plt.figure().subplots()


def drawn(name: str, arguments: Callable[[], dict]) -> None:
    def build():
        axes()
        return public(f"stepnet.plots.{name}"), arguments()

    CALLS[f"stepnet.plots.{name}"] = build


def halves(points):
    return np.stack([points[:, 0] > 0, points[:, 0] <= 0], axis=1).astype(float)


HEAT_GRID = sn.operators.Grid(8, 0.0, 1.0)


def heat_solution() -> sn.Solution:
    return sn.solve(sn.equations.heat(HEAT_GRID, np.linspace(0.0, 1.0, 8), (0.0, 0.1), 0.01), "rk4", steps=4)


def spatial_solution() -> sn.Solution:
    return sn.solve(sn.ODE(lambda t, y: [-y[0], -y[1], y[2]], [1.0, 0.5, 0.1], SPAN), "rk4", steps=4)


drawn("class_legend", lambda: {"place": axes(), "classes": [0, 1]})
drawn("animate", lambda: {"solution": heat_solution(), "grid": HEAT_GRID, "component": 0})
drawn("basins", lambda: {"labels": [[0, 1, -1], [0, 0, 1]], "x": (-1, 1), "y": (0, 1)})
drawn("bifurcation_diagram", lambda: {"branch": sn.stability.continuation(folding(), "a", 0.0, points=4)})
drawn("convergence", lambda: {"study": convergence_study()})
drawn("heat_map", lambda: {"solution": heat_solution(), "grid": HEAT_GRID, "time": 0.1, "component": 0})
drawn("lyapunov_map", lambda: {"found": sn.stability.LyapunovField([0.0, 1.0], [0.0, 1.0], np.eye(2))})
drawn("phase_portrait", lambda: {
    "problem": ode(), "x": (-1, 1), "y": (-1, 1), "starts": [[0.5, 0.0]], "resolution": 4
})  # fmt: skip
drawn("poincare_points", lambda: {"found": sn.stability.PoincareSection(np.zeros(1), np.zeros((1, 2)))})
drawn("schedule", lambda: {"plan": sn.checkpoints.binomial(4, 2)})
drawn("scheme_report", lambda: {"scheme": "rk4"})
drawn("spectrum_in_region", lambda: {"scheme": "rk4", "z": [-1.0, -2.0 + 1j]})
drawn("trajectory", lambda: {"solution": spatial_solution()})
drawn("gradient_norms", lambda: {"found": sn.stability.gradient_norms(net(), RNG_X)})
drawn("layer_ranges", lambda: {"block": sn.stability.certificate(net()).blocks[0], "scheme": "verlet"})
drawn("probabilities", lambda: {"predict": halves, "x": RNG_X, "labels": LABELS, "of": 0, "resolution": 5})
drawn("robustness", lambda: {
    "found": sn.stability.robustness(net(), RNG_X, LABELS, [0.0, 0.1], attacks=["fgsm"]), "label": "net"
})  # fmt: skip
drawn("work_precision", lambda: {"found": work_precision(), "work": "seconds"})
drawn("energy_error", lambda: {"solution": solution(), "energy": energy})
drawn("graph", lambda: {"adjacency": ADJACENCY})
drawn("graph_positions", lambda: {"adjacency": ADJACENCY})
drawn("history", lambda: {"run": run()})
drawn("layers", lambda: {"net": net(), "x": RNG_X, "labels": LABELS})
drawn("mean_square_stability", lambda: {"/0": "euler_maruyama"})
drawn("orbit", lambda: {"solution": solution()})
drawn("order_star", lambda: {"scheme": "rk4", "reach": 3.0})
drawn("regions", lambda: {"predict": predict, "x": RNG_X, "labels": LABELS, "resolution": 8})
drawn("stability_region", lambda: {"/0": "rk4", "/1": "verlet"})
drawn("step_sizes", lambda: {"solution": solution()})
drawn("style", dict)

# ---- reductions -----------------------------------------------------------------------------------------------------

REDUCTIONS = {
    "Basins": lambda: {"attractors": [[0.0, 0.0], [1.0, 1.0]], "tolerance": 0.5},
    "EscapeTimes": lambda: {"radius": 5.0},
    "Lyapunov": lambda: {"every": 0.5},
    "Mean": dict,
    "Quantiles": lambda: {"levels": (0.5,), "size": 8},
    "Rows": lambda: {"function": first_entry},
    "States": dict,
}
for name, numbers in REDUCTIONS.items():
    build = lambda name=name, numbers=numbers: getattr(sn.reductions, name)(**numbers())
    members = (lambda: chunk(save_at=[0.5, 1.0])) if name == "EscapeTimes" else chunk
    whole = lambda build=build, members=members: build().reduce_chunk(members())
    add(f"stepnet.ensembles.reductions.{name}", numbers)
    add_methods(
        f"stepnet.ensembles.reductions.{name}", build, reduce_chunk=lambda members=members: {"chunk": members()},
        result=lambda whole=whole: {"whole": whole()},
    )  # fmt: skip
    if hasattr(getattr(sn.reductions, name), "merge"):
        pair = lambda whole=whole: {"one": whole(), "other": whole()}
        add_methods(f"stepnet.ensembles.reductions.{name}", build, merge=pair)
add("stepnet.ensembles.reductions.Chunk", lambda: {
    "problem": decaying(), "scheme": sn.schemes.get("rk4"), "rows": {"y0": np.ones((3, 2))}, "options": {"steps": 3}
})  # fmt: skip
add(
    "stepnet.ensembles.reductions.Ends",
    lambda: {"y": np.ones(2), "t_end": np.ones(2), "status": np.ones(2), "steps": np.ones(2)},
)
add("stepnet.ensembles.reductions.Moments", lambda: {"members": 2, "mean": np.ones(2), "variance": np.ones(2)})
add(
    "stepnet.ensembles.reductions.QuantilesFound",
    lambda: {"members": 2, "levels": (0.5,), "values": np.ones(2), "rank_error": 0.0},
)

# ---- schemes --------------------------------------------------------------------------------------------------------

rk4 = lambda: sn.schemes.get("rk4")
midpoint = {"name": "mine", "order": 2, "a": ((), (0.5,)), "b": (0.0, 1.0), "reference": "mine"}
add("stepnet.schemes.Butcher", lambda: {"A": np.zeros((1, 1)), "b": np.ones(1), "c": np.zeros(1)})
add(
    "stepnet.schemes.Controller",
    lambda: {"name": "mine", "beta1": 1.0, "beta2": 0.0, "beta3": 0.0, "reference": "mine"},
)
add("stepnet.schemes.Embedded", lambda: {"b": (1.0, 0.0), "order": 1})
add("stepnet.schemes.ExplicitRK", lambda: dict(midpoint))
record = lambda scheme: lambda: {
    each: getattr(sn.schemes.get(scheme), each)
    for each in inspect.signature(type(sn.schemes.get(scheme))).parameters
}  # fmt: skip
add("stepnet.schemes.LowStorageRK", record(next(s for s in sn.schemes.names("ODE") if s.startswith("carpenter"))))
add("stepnet.schemes.Multistep", record("ab2"))
add("stepnet.schemes.FixedBDF", record("bdf2"))
add("stepnet.schemes.PartitionedRK", record("lobatto_iiia_iiib2"))
add("stepnet.schemes.VariableAdams", record("adams"))
add("stepnet.schemes.VariableBDF", record("ndf"))
add("stepnet.schemes.Switching", record("auto"))
add("stepnet.schemes.Splitting", record("verlet"))
add_methods("stepnet.schemes.Splitting", lambda: sn.schemes.get("verlet"), sequence=dict)
add("stepnet.schemes.StabilisedRK", lambda: {
    each: getattr(sn.schemes.rkc1(3), each) for each in inspect.signature(sn.schemes.StabilisedRK).parameters
})  # fmt: skip
add("stepnet.schemes.PhiTerm", lambda: {"weight": 1.0, "k": 1, "c": 0.5})
add("stepnet.schemes.find", lambda: {"order": 4})
add("stepnet.schemes.get", lambda: {"name": "rk4"})
add("stepnet.schemes.names")
for scheme in (
    sn.schemes.implicit.SDIRK2, sn.schemes.rosenbrock.RODAS3, sn.schemes.imex.ARS222, sn.schemes.semi_implicit.SBDF2,
    sn.schemes.exponential.ETDRK2,
):  # fmt: skip
    add(
        f"stepnet.schemes.{type(scheme).__name__}",
        lambda scheme=scheme: {each: getattr(scheme, each) for each in inspect.signature(type(scheme)).parameters},
    )
for name in (
    "gauss", "lobatto_iiia", "lobatto_iiia_iiib", "lobatto_iiib", "lobatto_iiic", "radau_iia", "rkc1", "rkc2", "rkl1",
    "rkl2",
):  # fmt: skip
    add(f"stepnet.schemes.{name}", lambda: {"stages": 3})
add("stepnet.schemes.theta_maruyama", lambda: {"theta": 0.5})
add("stepnet.schemes.theta_milstein", lambda: {"theta": 0.5, "calculus": "stratonovich"})
for name in sn.schemes.conditions.__all__:
    add(f"stepnet.schemes.conditions.{name}", lambda: {"scheme": rk4()})
add("stepnet.schemes.conditions.amplification", lambda: {"scheme": rk4(), "z": -1.0})

# ---- training -------------------------------------------------------------------------------------------------------

for name in ("LBFGS", "MSA", "GaussNewton", "LineSearch", "TrustRegion", "ClipNorm", "ClipValue", "Recipe"):
    add(f"stepnet.training.{name}")
clipped = lambda: {"gradient": np.array([3.0, 4.0])}
add_methods("stepnet.training.ClipNorm", lambda: sn.training.ClipNorm(), __call__=clipped)
add_methods("stepnet.training.ClipValue", lambda: sn.training.ClipValue(), __call__=clipped)
SCHEDULES = {
    "Constant": lambda: {"rate": 0.1},
    "Cosine": lambda: {"rate": 0.1, "epochs": 10},
    "Exponential": lambda: {"rate": 0.1},
    "InverseTime": lambda: {"rate": 0.1},
    "StepDecay": lambda: {"rate": 0.1},
    "WarmUp": lambda: {"then": sn.training.Constant(0.1)},
}
for name, numbers in SCHEDULES.items():
    add(f"stepnet.training.{name}", numbers)
    build = lambda name=name, numbers=numbers: getattr(sn.training, name)(**numbers())
    add_methods(f"stepnet.training.{name}", build, __call__=lambda: {"epoch": 1.0})
OPTIMISERS = dict.fromkeys(("SGD", "AdaGrad", "Adam", "AdamW", "Momentum", "Nesterov", "RMSprop"), dict)
OPTIMISERS["Proximal"] = lambda: {"optimiser": sn.training.SGD(), "penalty": sn.nets.penalties.l1(0.1)}
for name, numbers in OPTIMISERS.items():
    add(f"stepnet.training.{name}", numbers)
    build = lambda name=name, numbers=numbers: getattr(sn.training, name)(**numbers())
    slots = lambda build=build: sn.training.optimisers.empty_slots(build(), np.ones(3))
    add_methods(
        f"stepnet.training.{name}", build,
        step=lambda slots=slots: {
            "theta": np.ones(3), "gradient": np.ones(3), "slots": slots(), "rate": 0.1, "count": 1,
        },
    )  # fmt: skip
add("stepnet.training.optimisers.empty_slots", lambda: {"optimiser": sn.training.Adam(), "theta": np.ones(3)})
add("stepnet.training.optimisers.get", lambda: {"name": "adam", "rate": 0.1})
add("stepnet.training.optimisers.names")
add("stepnet.training.schedules.get", lambda: {"name": "constant", "rate": 0.1})
add("stepnet.training.schedules.names")
add("stepnet.training.schedules.schedule", lambda: {"rate": 0.1})
add("stepnet.training.Data", lambda: {"x": RNG_X, "y": LABELS, "keys": np.arange(6)})
add_methods("stepnet.training.Data", data, arrays=dict, rows=lambda: {"indices": np.arange(2)})
add("stepnet.training.Evaluation", lambda: {"value": 1.0, "accuracy": 1.0, "gradient": np.ones(2)})
add("stepnet.training.Minimum", lambda: {
    "theta": np.ones(2), "value": 1.0, "gradient": np.ones(2), "converged": True, "message": "",
    "history": np.ones(2), "gradients": 1
})  # fmt: skip
add("stepnet.training.Objective", lambda: {
    "model": net(), "loss": losses.get("mse"), "paths": 2, "noise": sn.nets.SampleNoise()
})  # fmt: skip
weights = lambda: {"theta": ones(), "data": data()}
add_methods("stepnet.training.Objective", objective, expansion=weights, gradient=weights, value=weights)
add("stepnet.training.Part", lambda: {"model": net(), "indices": np.arange(3)})
add_methods(
    "stepnet.training.Part", part, __call__=x(), gradient=x(loss=squares_and_gradient), roughness=dict,
    gauss_newton=lambda: {"x": RNG_X, "v": np.ones(3), "hessian": np.copy}, put=lambda: {"theta": np.ones(3)},
)  # fmt: skip
add("stepnet.training.Projected", lambda: {"loss": losses.get("mse"), "outputs": 2})
projected = lambda: sn.training.Projected(losses.get("mse"), 2)
featured = lambda: {"features": RNG_X, "targets": np.ones((6, 2))}
add_methods("stepnet.training.Projected", projected, at=featured, readout=featured)
recipe = lambda: sn.training.Recipe(batch_size=2)
add_methods(
    "stepnet.training.Recipe", recipe, order=lambda: {"samples": 6, "epoch": 0}, steps_per_epoch=lambda: {"samples": 6}
)  # fmt: skip
add(
    "stepnet.training.Run",
    lambda: {each: getattr(run(), each) for each in inspect.signature(sn.training.Run).parameters},
)
quick = lambda: {"objective": objective(), "data": data(), "method": sn.training.LBFGS(2)}
add("stepnet.training.block_coordinate", lambda: dict(**quick(), sweeps=1))
add("stepnet.training.blocks_by_name", lambda: {"model": net()})
add("stepnet.training.load", lambda: {"path": trained_path()})
add("stepnet.training.minimise", quick)
add("stepnet.training.multilevel", lambda: dict(**quick(), levels=1))
add(
    "stepnet.training.train", lambda: {"objective": objective(), "data": data(), "recipe": sn.training.Recipe(epochs=1)}
)
add(
    "stepnet.training.truncated_cg",
    lambda: {"product": np.copy, "g": np.ones(3), "radius": 1.0, "iterations": 3, "tol": 0.1},
)


# ---- what must be in it ---------------------------------------------------------------------------------------------


def public_modules() -> list[ModuleType]:
    """`stepnet`, `stepnet.torch`, `stepnet.ensembles.sweeps`, and all modules among their public names."""
    found = [sn, snt, import_module("stepnet.ensembles.sweeps")]
    for each in found:
        members = (getattr(each, name) for name in each.__all__)
        found += [member for member in members if isinstance(member, ModuleType) and member not in found]
    return found


def public_callables() -> dict[str, object]:
    """Every public function and class, by the first name it has; protocols and enumerations are not called."""
    found: dict[str, object] = {}
    for module in public_modules():
        for name in module.__all__:
            member = getattr(module, name)
            is_read = getattr(member, "_is_protocol", False) or (isinstance(member, type) and issubclass(member, Enum))
            if callable(member) and not is_read and not any(member is other for other in found.values()):
                found[f"{module.__name__}.{name}"] = member
    return found


def methods_of(kind: type) -> list[str]:
    """Public methods that the package defines, and properties that can be set."""
    found = []
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        is_ours = inspect.isfunction(function) and function.__module__.startswith("stepnet.")
        is_set = isinstance(member, property) and member.fset is not None
        if (not name.startswith("_") or name == "__call__") and (is_ours or is_set):
            found.append(name)
    return found
