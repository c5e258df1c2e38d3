"""Nets in files: numbers as tensors of one safetensors file, the design as JSON in its header.  Nothing is pickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np
from scipy import sparse

from stepnet import fields
from stepnet.checkpoints import Checkpoints
from stepnet.fields import Activation, activation
from stepnet.nets.design import Block, Design
from stepnet.schemes import catalogue
from stepnet.schemes.tableau import Dense, Embedded

FORMAT = 1
RECORDS = {
    each.__name__: each
    for each in (Block, Design, fields.Field, fields.Chain, fields.Layer, fields.Mixing, fields.Fixed, fields.Attention,
                 fields.Normalisation, fields.Depth, fields.HeldWeights, fields.Stencil, Checkpoints,
                 *catalogue.RECORDS, Embedded, Dense)
}  # fmt: skip


def write(path, net) -> None:
    """Weights by name, operators by number, and the design."""
    from safetensors.numpy import save_file

    tensors = {f"weights.{name}": np.ascontiguousarray(value) for name, value in net.weights.items()}
    operators: list = []
    described = _described(net.design, operators)
    for number, P in enumerate(operators):
        for part in ("data", "indices", "indptr"):
            tensors[f"operators.{number}.{part}"] = np.ascontiguousarray(getattr(P, part))
        tensors[f"operators.{number}.shape"] = np.array(P.shape)
    memory = _described(net.memory, operators)
    header = {"format": FORMAT, "dtype": net.dtype.name, "memory": memory, "layout": net.layout, "design": described}
    save_file(tensors, path, metadata={"stepnet": json.dumps(header)})


def fingerprint(net) -> str:
    """A name for design, precision and layout: nets with the same one are the same but for their weights."""
    operators: list = []
    described = json.dumps([net.dtype.name, net.layout, _described(net.design, operators)])
    found = hashlib.sha256(described.encode())
    for P in operators:
        for part in (P.data, P.indices, P.indptr):
            found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def read(path):
    """The net in a file."""
    header, tensors = _opened(path)
    try:
        header = json.loads(header)
        if header["format"] == FORMAT:
            return _net(header, tensors)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} holds a net that cannot be built: {type(error).__name__}: {error}") from error
    raise ValueError(f"{str(path)!r} has the format {header['format']}, this version reads {FORMAT}")


def _opened(path) -> tuple[str, dict[str, np.ndarray]]:
    """The header of a file, and its tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            header = (file.metadata() or {}).get("stepnet")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is no safetensors file: {error}") from None
    if header is None:
        raise ValueError(f"{str(path)!r} is no net: its header has no design")
    return header, tensors


def _net(header: dict, tensors: dict):
    from stepnet.nets.net import Net

    design = _built(header["design"], tensors)
    theta = [tensors[f"weights.{name}"].ravel() for name in design.shapes]
    memory = _built(header.get("memory", "auto"), tensors)
    layout = header.get("layout", "channels_first")
    return Net(design, np.concatenate([np.zeros(0), *theta]), dtype=header["dtype"], memory=memory, layout=layout)


def _described(value, operators: list):
    """A record as JSON; operators go to a list, each once."""
    if isinstance(value, Activation):
        return {"activation": value.name}
    if sparse.issparse(value):
        known = next((i for i, P in enumerate(operators) if P is value), None)
        if known is None:
            operators.append(value)
            known = len(operators) - 1
        return {"operator": known}
    name = getattr(value, "name", None)
    if isinstance(value, catalogue.RECORDS) and _is_known(name, value):
        return {"scheme": name}
    if type(value) is RECORDS.get(type(value).__name__):
        each = {f.name: _described(getattr(value, f.name), operators) for f in dataclasses.fields(value)}
        return {"record": type(value).__name__, **each}
    if isinstance(value, tuple):
        return [_described(each, operators) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be written into the file of a net, found {value!r:.80}")


def _is_known(name, scheme) -> bool:
    """Whether the catalogue has this scheme by this name; others are written as their numbers."""
    try:
        return catalogue.get(name) == scheme
    except (LookupError, ValueError):
        return False


def _built(value, tensors: dict):
    if isinstance(value, list):
        return tuple(_built(each, tensors) for each in value)
    if not isinstance(value, dict):
        return value
    if "record" in value:
        arguments = {key: _built(each, tensors) for key, each in value.items() if key != "record"}
        return RECORDS[value["record"]](**arguments)
    if "activation" in value:
        return activation(value["activation"])
    if "operator" in value:
        part = {key: tensors[f"operators.{value['operator']}.{key}"] for key in ("data", "indices", "indptr", "shape")}
        return sparse.csr_array((part["data"], part["indices"], part["indptr"]), shape=tuple(part["shape"].tolist()))
    return catalogue.get(value["scheme"])
