"""Nets of every connectivity, dynamics and scheme, and plain torch functions that compute the same."""

from __future__ import annotations

from functools import cache
from itertools import combinations, product

import numpy as np
from fields import zoo

import stepnet as sn
from stepnet import fields, nets
from stepnet.nets import Block, Design
from stepnet.nets.execution import CHUNK, TILE
from stepnet.nets.memory_split import count_chunk_bytes
from stepnet.schemes.step_program import Slope

STEPS = 13  # four segments and one step
SCHEMES = {
    "first": ("euler", "heun2", "rk4", "ssprk3", "williamson3", "rkc2", "ab3", "midpoint_two_step"),
    "partitioned": ("symplectic_euler_kick", "verlet", "yoshida4", "blanes_moan4"),
    "second": ("verlet", "verlet_position", "leapfrog_two_step", "blanes_moan_nystrom4"),
}
MEMORIES = {
    "all": "all", "segments": "segments", "few": sn.Checkpoints(1), "bytes": None, "reversible": "reversible",
}  # fmt: skip
SCARCE = 1.05  # of the bytes that a gradient takes at least
SPLINES = (0, 1, 3)
DEGREES = (*SPLINES, None)  # None for weights held over each step
ACTIVATIONS = ("tanh", "softplus", "gelu", "silu", "sigmoid")
KINKED = ("relu", "leaky_relu", "elu", "selu")
SEGMENT = 3  # steps run again at once: in the cache there is space for all the steps of such small nets


def memory_of(name: str, net, samples: int):
    """A choice by its name; bytes are so few that hardly a state is kept."""
    if name != "bytes":
        return MEMORIES[name]
    return int(SCARCE * count_chunk_bytes(net._execution.stages, min(-(-samples // TILE), CHUNK)))


def field_of(connectivity: str, dynamics: str, activation: str = "tanh"):
    arguments = {"damping": 0.1} if dynamics == "antisymmetric" else {}
    return zoo.field_of(connectivity, dynamics, activation, **arguments)


def product_of_all():
    """Every (connectivity, dynamics, scheme, memory) that goes together."""
    found = []
    for K, dynamics in zoo.combinations():
        field = field_of(K, dynamics)
        for scheme, memory in product(SCHEMES[field.kind], MEMORIES):
            if memory != "reversible" or is_undone(K, dynamics, scheme):
                found.append((K, dynamics, scheme, memory))
    return found


def is_undone(connectivity, dynamics, scheme):
    return Block(field_of(connectivity, dynamics), scheme, STEPS).scheme_program.back is not None


def kinked_cases():
    """Every (connectivity, dynamics, kinked activation, memory), with schemes in turn from net to net."""
    found = []
    for number, (K, dynamics) in enumerate(zoo.combinations()):
        schemes = SCHEMES[field_of(K, dynamics).kind]
        for (place, activation), memory in product(enumerate(KINKED), MEMORIES):
            able = [s for s in schemes if memory != "reversible" or is_undone(K, dynamics, s)]
            if able:
                found.append((K, dynamics, activation, memory, able[(number + place) % len(able)]))
    return found


def pairs_of(case):
    """Of its first four factors."""
    return {(i, case[i], j, case[j]) for i, j in combinations(range(min(4, len(case))), 2)}


def pairwise(cases):
    """Few of the cases that hold every pair of two factors which the whole holds; greedy, in a mixed order."""
    cases = [cases[i] for i in np.random.default_rng(0).permutation(len(cases))]
    wanted, chosen = set().union(*map(pairs_of, cases)), []
    while wanted:
        best = max(cases, key=lambda case: len(pairs_of(case) & wanted))
        chosen.append(best)
        wanted -= pairs_of(best)
    return chosen


def net_of(connectivity, dynamics, scheme, number=0, dtype=float, steps=STEPS, activation=None, degrees=DEGREES):
    """A net of one block with random weights; activation and rule of depth vary with the number."""
    field = field_of(connectivity, dynamics, activation or ACTIVATIONS[number % len(ACTIVATIONS)])
    degree = degrees[number % len(degrees)]
    depth = fields.HeldWeights(steps) if degree is None else fields.Depth(5 if degree else steps, degree)
    net = nets.Net(Design((Block(field, scheme, steps, 0.8, depth),)), dtype=dtype)
    net.put(0.5 * np.random.default_rng(number).normal(size=net.theta.size))
    return net


def scattered(design, number=0, scale=0.4):
    net = nets.Net(design)
    net.put(scale * np.random.default_rng(number).normal(size=net.theta.size))
    return net


def joined_blocks(channels, scheme, dynamics, activation="tanh"):
    """Blocks of convolutions, joined by pooling and a change of channels; opening and read-out."""
    return nets.parabolic_cnn(
        (4, 4), channels, 8, inputs=2, outputs=3, dynamics=dynamics, scheme=scheme, activation=activation, degree=1
    ).design


def mixed_blocks():
    """Three kinds of blocks, of other widths and other lengths."""
    first = Block(field_of("dense", "residual", "gelu"), "rk4", 7, 0.8, fields.Depth(3, 1))
    second = Block(field_of("graph", "hamiltonian"), "yoshida4", 9, 0.5)
    third = Block(field_of("set", "hyperbolic", "silu"), "leapfrog_two_step", 11, 0.6, fields.Depth(5, 3))
    layers = [fields.Layer(fields.dense(a.n_out, b.n_in), activation="tanh")
              for a, b in ((first, second), (second, third))]  # fmt: skip
    return Design((first, second, third), joins=tuple(fields.Chain((layer,)) for layer in layers))


SEVERAL = {  # several blocks, and whether all of their steps can be undone
    "parabolic euler": (lambda: joined_blocks((2, 4), "euler", "parabolic"), False),
    "parabolic rkc2, relu": (lambda: joined_blocks((2, 4), "rkc2", "parabolic", "relu"), False),
    "residual ab3": (lambda: joined_blocks((2, 3), "ab3", "residual", "softplus"), False),
    "antisymmetric midpoint": (lambda: joined_blocks((2, 4), "midpoint_two_step", "antisymmetric"), True),
    "hamiltonian verlet": (lambda: joined_blocks((4, 6), "verlet", "hamiltonian"), True),
    "hamiltonian yoshida4, elu": (lambda: joined_blocks((4, 2), "yoshida4", "hamiltonian", "elu"), True),
    "mixed": (mixed_blocks, False),
}


# ---- the same in torch: dense matrices, programs step by step -------------------------------------------------------


def torch_outputs(net, weights, x):
    """Outputs; `weights` maps names to tensors, x is `(batch, features)`."""
    state = x.T
    for name, stage in net.design.stages():
        own = {key.rpartition(".")[2]: value for key, value in weights.items() if key.startswith(f"{name}.")}
        state = torch_block(stage, own, state) if isinstance(stage, Block) else torch_chain(stage, own, 0.0, state)
    return state.T


def torch_block(block, weights, x):
    """The state `(width, batch)` at the end of a block."""
    import torch

    scheme_program, h = block.scheme_program, block.h
    rows = [None] * scheme_program.step.n_rows
    for place, half in zip(scheme_program.state, torch.tensor_split(x, len(scheme_program.state)), strict=True):
        rows[place] = half

    def theta(step, operation):
        """At a stage; held weights of the step that it belongs to."""
        if isinstance(block.depth, fields.HeldWeights):
            place = min(step + operation.step, block.steps - 1)
            return {name: weights[name][place] for name in block.field.parameters}
        first, basis = block.depth.basis((step + operation.c) * h / block.length)
        return {
            name: sum(b * weights[name][first[0] + d] for d, b in enumerate(basis[0]))
            for name in block.field.parameters
        }

    def run(program, rows, step):
        made = list(rows)
        for operation in program.operations:
            if isinstance(operation, Slope):
                chain, t = block.field.chain(operation.part), (step + operation.c) * h
                made.append(torch_chain(chain, theta(step, operation), t, made[operation.row]))
            else:
                made.append(sum(term.weight * h**term.power * made[term.row] for term in operation.terms))
        return [made[row] for row in program.outputs]

    rows = run(scheme_program.opening, rows, 0)
    for step in range(scheme_program.opening.steps, block.steps):
        rows = run(scheme_program.step, rows, step)
    return torch.cat([rows[place] for place in scheme_program.state])


def torch_chain(chain, weights, t, x):
    import torch

    from_name = {
        "tanh": torch.tanh, "relu": torch.relu, "leaky_relu": torch.nn.functional.leaky_relu,
        "softplus": lambda u: torch.logaddexp(u, torch.zeros_like(u)), "gelu": torch.nn.functional.gelu,
        "silu": torch.nn.functional.silu, "elu": torch.nn.functional.elu, "selu": torch.nn.functional.selu,
        "sigmoid": torch.sigmoid, "identity": lambda u: u,
    }  # fmt: skip
    v = x
    for layer in chain.layers:
        K = torch_matrices(layer, weights, x if layer.is_transposed else v)
        u = torch.einsum("bij,jb->ib", K, v)
        for name, factor in ((layer.bias, 1.0), (layer.clock, t)):
            if name is not None:
                u = u + factor * torch.repeat_interleave(weights[name], layer.bias_nodes)[:, None]
        v = from_name[layer.activation.name](u)
    return chain.sign * v


def torch_matrices(layer, weights, x):
    """K(x) of a layer as one full matrix for every sample."""
    import torch

    K, W = layer.connectivity, weights.get(layer.weights)
    if isinstance(K, fields.Attention):
        matrix = torch_attention(K, W, x)
    elif isinstance(K, fields.Normalisation):
        matrix = torch_normalisation(K, x)
    elif isinstance(K, fields.Fixed):
        matrix = torch.from_numpy(np.kron(np.eye(K.channels), K.operator.toarray()))[None]
    else:
        taps = W.reshape(-1, K.channels_out, K.channels_in)
        matrix = torch.einsum("koc,kij->oicj", taps, full_operators(K)).reshape(1, K.n_out, K.n_in)
    if layer.is_transposed:
        matrix = matrix.mT
    if layer.is_antisymmetric:
        matrix = matrix - matrix.mT
    if layer.shift:
        matrix = matrix + layer.shift * torch.eye(layer.n_in, dtype=matrix.dtype)
    return matrix.expand(x.shape[1], -1, -1)


@cache
def full_operators(K):
    import torch

    return torch.from_numpy(np.stack([P.toarray() for P in K.operators]))


def torch_normalisation(K, x):
    import torch

    mean = torch.full((K.channels, K.channels), 1 / K.channels if K.is_centred else 0.0, dtype=x.dtype)
    C = torch.kron(torch.eye(K.channels, dtype=x.dtype) - mean, torch.eye(K.nodes, dtype=x.dtype))
    size = (C @ x).reshape(K.channels, K.nodes, -1).square().mean(0).add(K.eps).sqrt()
    return C / size.repeat(K.channels, 1).T[:, :, None]


def torch_attention(K, W, x):
    import torch

    n, size, found = K.tokens, K.channels // K.heads, []
    X = x.reshape(K.channels, n, -1)
    Q, Keys = torch.einsum("oc,cnb->bon", W[0], X), torch.einsum("oc,cnb->bon", W[1], X)
    for head in range(K.heads):
        own = slice(head * size, (head + 1) * size)
        scores = Q[:, own].mT @ Keys[:, own] / size**0.5
        if K.is_causal:
            scores = scores.masked_fill(torch.triu(torch.ones(n, n, dtype=torch.bool), 1), -torch.inf)
        found.append(torch.einsum("oe,ec,bij->boicj", W[3][:, own], W[2][own], torch.softmax(scores, -1)))
    return sum(found).reshape(-1, K.n_in, K.n_in)
