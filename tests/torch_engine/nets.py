"""Fields of networks with random weights along depth, as plain problems and as runs of tensors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from fields.zoo import combinations, field_of

import stepnet as sn
from stepnet import fields
from stepnet.engines.torch_engine.integrators.fixed_steps import (
    StateRead,
    find_compiled_scheme,
    read_state,
    read_states_at,
)
from stepnet.engines.torch_engine.layers.chains import TensorField, build_layered_run
from stepnet.engines.torch_engine.layers.tables import build_stage_table
from stepnet.fields import reference

STEPS, LENGTH, BATCH = 6, 0.9, 2  # more steps than any multistep scheme looks back
DEPTHS = [fields.Depth(STEPS), fields.Depth(1), fields.Depth(4, 1), fields.Depth(5, 3)]
ACTIVATIONS = list(fields.ACTIVATIONS)


class Case(NamedTuple):
    """A field, the weights along its depth, and where it starts."""

    name: str
    field: fields.Field
    depth: fields.Depth
    controls: dict[str, np.ndarray]
    y0: np.ndarray


def random_case(name: str, field: fields.Field, depth: fields.Depth, scale=0.4) -> Case:
    """Random numbers that depend on the name only."""
    rng = np.random.default_rng([*name.encode()])
    controls = {key: scale * rng.normal(size=(depth.controls, *shape)) for key, shape in field.parameters.items()}
    return Case(name, field, depth, controls, rng.normal(size=(field.width, BATCH)))


def _cases():
    for number, (K, dynamics) in enumerate(combinations()):
        activation = ACTIVATIONS[number % len(ACTIVATIONS)]
        name = f"{dynamics}-{K}-{activation}".replace(" ", "_")
        yield random_case(name, field_of(K, dynamics, activation), DEPTHS[number % len(DEPTHS)])
    mlp = fields.mlp([3, 7, 5, 3], "tanh", has_time=True)
    for depth in DEPTHS:
        yield random_case(f"mlp-{depth.controls}-{depth.degree}", fields.chained(mlp), depth)


CASES = list(_cases())


def problem(case: Case):
    """The same net as a plain problem of the flat state, by the plain meaning of fields."""

    def function(part):
        chain = case.field.parts[part]

        def slope(t, y):
            weights = {key: case.depth.values(value, float(t) / LENGTH) for key, value in case.controls.items()}
            return reference.evaluate(chain, weights, float(t), y.astype(float).reshape(-1, BATCH)).ravel()

        return slope

    span, y0 = (0.0, LENGTH), case.y0.ravel()
    match case.field.kind:
        case "first":
            return sn.ODE(function(0), y0, span)
        case "partitioned":
            return sn.Partitioned(function(0), function(1), *np.split(y0, 2), span)
    return sn.SecondOrder(function(0), *np.split(y0, 2), span)


def on_tensors(case: Case, scheme, dtype=torch.float64):
    """The states `(features, batch)` after the last three steps."""
    module = TensorField(case.field)
    moves = find_compiled_scheme(scheme, module.equation())
    times = build_stage_table(moves, STEPS, LENGTH, case.depth)
    controls = {key: torch.tensor(value, dtype=dtype).unbind() for key, value in case.controls.items()}
    run = build_layered_run(module, moves, times, controls)
    state = module.state(torch.tensor(case.y0.T, dtype=dtype))
    found = read_states_at(run, state, [StateRead(step, read_state) for step in range(STEPS - 2, STEPS + 1)])
    return np.stack([torch.cat(state, dim=1).numpy().T for state in found])
