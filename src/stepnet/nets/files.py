"""Nets in files: numbers as tensors of one safetensors file, the design as JSON in its header.  Nothing is pickled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from stepnet import fields
from stepnet.checkpoints import Checkpoints
from stepnet.errors import DamagedFile
from stepnet.fields import Activation, activation
from stepnet.fields.convolutions import build_shifts
from stepnet.nets.design import Block, Design
from stepnet.schemes import catalogue
from stepnet.schemes.tableau import Dense, Embedded
from stepnet.storage.atomic_files import validate_path, write_file
from stepnet.storage.stored_arrays import TROUBLE, Tensors, open_tensors

if TYPE_CHECKING:
    from os import PathLike

    from stepnet.nets.net import Net

FORMAT = 1
DTYPES = ("float64", "float32")
MOST_STEPS = 2**20  # of a block, in a file
MOST_NODES = 2**24  # rows or columns of an operator, in a file
RECORDS = {
    each.__name__: each
    for each in (Block, Design, fields.Field, fields.Chain, fields.Layer, fields.Mixing, fields.Fixed, fields.Attention,
                 fields.Normalisation, fields.Diffusion, fields.Depth, fields.HeldWeights, fields.Stencil, Checkpoints,
                 *catalogue.RECORDS, Embedded, Dense)
}  # fmt: skip


def write(path: str | PathLike[str], net: Net) -> None:
    """Write weights by name, operators by number, and the design; the file is replaced atomically."""
    from safetensors.numpy import save

    file = validate_path("path", path)
    tensors = {f"weights.{name}": np.ascontiguousarray(value) for name, value in net.weights.items()}
    operators: list[Any] = []
    described = _describe(net.design, operators)
    for number, P in enumerate(operators):
        for part in ("data", "indices", "indptr"):
            tensors[f"operators.{number}.{part}"] = np.ascontiguousarray(getattr(P, part))
        tensors[f"operators.{number}.shape"] = np.array(P.shape)
    memory = _describe(net.memory, operators)
    header = {"format": FORMAT, "dtype": net.dtype.name, "memory": memory, "layout": net.layout, "design": described}
    write_file(file, save(tensors, metadata={"stepnet": json.dumps(header)}))


def fingerprint(net: Net) -> str:
    """A hash of design, precision and layout: nets with equal hashes differ only in their weights."""
    operators: list[Any] = []
    described = json.dumps([net.dtype.name, net.layout, _describe(net.design, operators)])
    found = hashlib.sha256(described.encode())
    for P in operators:
        for part in (P.data, P.indices, P.indptr):
            found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def read(path: str | PathLike[str]) -> Net:
    """Read a net from a file; every number is validated before use, because the file may be untrusted."""
    file = validate_path("path", path)
    with open_tensors(file) as tensors:
        text = tensors.metadata.get("stepnet")
        if text is None:
            raise DamagedFile(f"{str(path)!r} is not a net: its header has no design")
        try:
            header = json.loads(text)
            if header["format"] == FORMAT:
                return _build_net(header, tensors)
        except TROUBLE as error:
            reason = f"{type(error).__name__}: {error}"
            raise DamagedFile(f"{str(path)!r} holds a net that cannot be built: {reason:.300}") from error
    raise DamagedFile(f"{str(path)!r} has the format {header['format']!r:.60}, this version reads {FORMAT}")


def _build_net(header: dict[str, Any], tensors: Tensors) -> Net:
    from stepnet.nets.net import Net

    design, dtype = _build(header["design"], tensors), header["dtype"]
    if dtype not in DTYPES:
        raise ValueError(f"`dtype` must be one of {DTYPES}, found {dtype!r:.60}")
    if not isinstance(design, Design):
        raise TypeError(f"`design` must be a Design, found {type(design).__name__}")
    for block in design.blocks:
        if block.steps > MOST_STEPS or block.depth.controls > MOST_STEPS:
            raise ValueError(f"`steps` of a net in a file must be at most {MOST_STEPS}, found {block.steps}")
    theta = [tensors.require(f"weights.{name}", shape, dtype).ravel() for name, shape in design.shapes.items()]
    memory = _build(header.get("memory", "auto"), tensors)
    layout = header.get("layout", "channels_first")
    return Net(design, np.concatenate([np.zeros(0), *theta]), dtype=dtype, memory=memory, layout=layout)


def _describe(value: Any, operators: list[Any]) -> Any:
    """Convert a record to JSON; operators are collected in a list, without duplicates."""
    if isinstance(value, Activation):
        return {"activation": value.name}
    if sparse.issparse(value):
        known = next((i for i, P in enumerate(operators) if _are_equal(P, value)), None)
        if known is None:
            operators.append(value)
            known = len(operators) - 1
        return {"operator": known}
    name = getattr(value, "name", None)
    if catalogue.is_scheme(value) and _is_known(name, value):
        return {"scheme": name}
    if type(value) is RECORDS.get(type(value).__name__):
        each = {f.name: _describe(getattr(value, f.name), operators) for f in dataclasses.fields(value)}
        return {"record": type(value).__name__, **each}
    if isinstance(value, tuple):
        return [_describe(each, operators) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be written into the file of a net, found {value!r:.80}")


def _are_equal(P: sparse.csr_array, Q: sparse.csr_array) -> bool:
    """Whether two operators have the same entries."""
    if P is Q:
        return True
    pairs = ((P.data, Q.data), (P.indices, Q.indices), (P.indptr, Q.indptr))
    return P.shape == Q.shape and all(np.array_equal(*pair) for pair in pairs)


def _is_known(name: Any, scheme: Any) -> bool:
    """Whether the catalogue has this scheme under this name; others are written with their coefficients."""
    try:
        return catalogue.get(name) == scheme
    except (LookupError, ValueError):
        return False


def _build(value: Any, tensors: Tensors) -> Any:
    if isinstance(value, list):
        return tuple(_build(each, tensors) for each in value)
    if not isinstance(value, dict):
        return value
    if "record" in value:
        arguments = {key: _build(each, tensors) for key, each in value.items() if key != "record"}
        return _validate(RECORDS[value["record"]](**arguments))
    if "activation" in value:
        return activation(value["activation"])
    if "operator" in value:
        return _read_operator(f"operators.{value['operator']}", tensors)
    return catalogue.get(value["scheme"])


def _validate(record: Any) -> Any:
    """Require that a convolution has the operators of its stencil, because engines use either."""
    if isinstance(record, fields.Mixing) and record.stencil is not None:
        pairs = zip(record.operators, build_shifts(record.stencil), strict=True)
        if any(abs(one - other).max() > 0 for one, other in pairs):
            raise ValueError(f"the operators of {record.name!r:.60} are not those of its stencil")
    return record


def _read_operator(name: str, tensors: Tensors) -> sparse.csr_array:
    """Read a sparse matrix and check its indices, which SciPy and the kernels do not."""
    rows, columns = tensors.require(f"{name}.shape", (2,), np.int64).tolist()
    if not (1 <= rows <= MOST_NODES and 1 <= columns <= MOST_NODES):
        raise ValueError(f"{name!r} must have 1 to {MOST_NODES} rows and columns, found {rows} and {columns}")
    (count, *_), _ = tensors.layout(f"{name}.data")
    data = tensors.require(f"{name}.data", (count,), np.float64)
    kind = tensors.layout(f"{name}.indices")[1]
    if kind not in (np.int32, np.int64):
        raise TypeError(f"indices of {name!r} must be int32 or int64, found {kind}")
    indices = tensors.require(f"{name}.indices", (count,), kind)
    bounds = tensors.require(f"{name}.indptr", (rows + 1,), kind)
    if bounds[0] != 0 or bounds[-1] != count or (np.diff(bounds) < 0).any():
        raise ValueError(f"rows of {name!r} must follow one another from 0 to {count}")
    if count and not 0 <= indices.min() <= indices.max() < columns:
        raise ValueError(
            f"indices of {name!r} must be from 0 to {columns - 1}, found {indices.min()} to {indices.max()}"
        )
    return sparse.csr_array((data, indices, bounds), shape=(rows, columns))
