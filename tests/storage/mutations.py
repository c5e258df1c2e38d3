"""Changes of stored files: of their bytes, and of the numbers in otherwise valid files."""

from __future__ import annotations

import json
import random
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np

NASTY = [
    0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, -(2**31), 2**53, 2**62, -(2**63), 1e308, -1e-300, float("nan"), float("inf"),
    None, True, "", "x", "../x", "/dev/zero", [], {}, [[]], {"record": "Block"}, {"scheme": "rk4"}, "a" * 1000,
]  # fmt: skip
TYPES = ["<f8", ">f8", "<f4", "<i8", "<i4", "|i1", "<c16", "|b1", "<U3", "<f2"]


def mutate(folder: Path, chance: random.Random) -> str:
    """Change one file of a folder; returns what was done."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    file = chance.choice(files)
    structured = {".npz": _npz, ".safetensors": _safetensors, ".json": _json}.get(file.suffix)
    if structured is not None and chance.random() < 0.6:
        content, what = structured(file.read_bytes(), chance)
    else:
        content, what = _bytes(file.read_bytes(), chance)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    return f"{file.relative_to(folder)}: {what}"


# ---- bytes -----------------------------------------------------------------------------------------------------------


def _bytes(content: bytes, chance: random.Random) -> tuple[bytes | None, str]:
    data, n = bytearray(content), len(content)
    at, to = sorted((chance.randrange(n + 1), chance.randrange(n + 1)))
    kind = chance.choice(["flip", "flips", "cut", "longer", "zeros", "noise", "moved", "empty", "missing", "digits"])
    if kind == "missing":
        return None, kind
    if kind in ("flip", "flips") and n:
        for _ in range(1 if kind == "flip" else 20):
            data[chance.randrange(n)] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        data = data[:at]
    elif kind == "longer":
        data += chance.randbytes(1 + chance.randrange(64))
    elif kind == "zeros":
        data[at:to] = bytes(to - at)
    elif kind == "noise":
        data[at:to] = chance.randbytes(to - at)
    elif kind == "moved":
        data = data[to:] + data[at:to] + data[:at]
    elif kind == "empty":
        data = bytearray()
    elif kind == "digits":  # sizes in headers are written in digits
        places = [i for i, byte in enumerate(data[:4000]) if 48 <= byte <= 57]
        for place in chance.sample(places, min(len(places), 2)):
            data[place] = chance.choice(b"0123456789")
    return bytes(data), kind


# ---- numbers in files that are in order ------------------------------------------------------------------------------


def _array(array: np.ndarray, chance: random.Random) -> tuple[np.ndarray, str]:
    kind = chance.choice(["value", "value", "value", "length", "one", "type", "axes", "scalar", "double"])
    if kind == "value" and array.size and array.dtype.kind in "biufV":
        return _with_value(array, chance)
    if kind == "length":
        return array.ravel()[: chance.randrange(array.size + 1)], kind
    if kind == "one":
        return array.ravel()[:1], kind
    if kind == "type" and array.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            return array.astype(chance.choice(TYPES)), kind
    if kind == "axes":
        return array[None], kind
    if kind == "scalar":
        return np.array(3.0), kind
    return np.concatenate([np.atleast_1d(array), np.atleast_1d(array)]), "double"


def _with_value(array: np.ndarray, chance: random.Random) -> tuple[np.ndarray, str]:
    changed = array.copy()
    if array.dtype.names:
        name = chance.choice(array.dtype.names)
        part, label = changed[name], name
    else:
        part, label = changed.reshape(-1), "entry"
    place = chance.randrange(part.size)
    if part.dtype.kind in "iu":
        limits = np.iinfo(part.dtype)
        value = chance.choice([-1, 0, 1, 5, 100, 10**6, 2**31, 2**40, limits.max, limits.min])
        value = min(max(value, limits.min), limits.max)
    elif part.dtype.kind == "f":
        value = chance.choice([0.0, -1.0, 1e-300, 1e300, np.nan, np.inf, -np.inf, 3.5, 1e6])
    else:
        value = chance.choice([True, False])
    with np.errstate(all="ignore"):
        part[place] = value
    return changed, f"{label} {place} = {value}"


def _npz(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    with np.load(BytesIO(content), allow_pickle=False) as stored:
        arrays = dict(stored)
    name, out = chance.choice(sorted(arrays)), BytesIO()
    if chance.random() < 0.1:
        del arrays[name]
        what = "removed"
    else:
        arrays[name], what = _array(arrays[name], chance)
    if chance.random() < 0.1:
        np.savez_compressed(out, **arrays)
    else:
        np.savez(out, **arrays)
    if chance.random() < 0.1:
        with zipfile.ZipFile(out, "a") as archive:
            archive.writestr("another.npy", b"\x93NUMPY rest")
    return out.getvalue(), f"{name} {what}"


def _safetensors(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    from safetensors.numpy import load, save

    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    arrays = load(content)
    if metadata and chance.random() < 0.5:
        key = chance.choice(sorted(metadata))
        text, what = metadata[key], "text"
        if text.startswith("{"):
            changed, what = _json(text.encode(), chance)
            metadata[key] = changed.decode()
        else:
            metadata[key] = chance.choice(["", "x", "COMPLETED", "1"])
        return save(arrays, metadata=metadata), f"metadata {key} {what}"
    if not arrays:
        return content[:-1], "cut"
    name = chance.choice(sorted(arrays))
    if chance.random() < 0.1:
        del arrays[name]
        return save(arrays, metadata=metadata), f"{name} removed"
    changed, what = _array(arrays[name], chance)
    if changed.dtype.kind not in "biuf" or changed.dtype.str[0] == ">":
        changed, what = changed.astype(np.float16) if changed.dtype.kind in "biuf" else np.zeros(2), "other"
    return save(arrays | {name: np.ascontiguousarray(changed)}, metadata=metadata), f"{name} {what}"


def _json(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    told = json.loads(content)
    if chance.random() < 0.05:
        return b"[" * 100_000, "deep"
    place, path = told, []
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        if not len(keys):
            return json.dumps(chance.choice(NASTY)).encode(), "replaced"
        key = chance.choice(list(keys))
        path.append(str(key))
        if not isinstance(place[key], (dict, list)) or chance.random() < 0.1:
            break
        place = place[key]
    value = place[key]
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.5:
        place[key] = value + chance.choice([-1, 1, 10, 10**6, 10**12, 10**20])
    elif isinstance(place, dict) and chance.random() < 0.2:
        del place[key]
    else:
        place[key] = chance.choice(NASTY)
    return json.dumps(told).encode(), "/".join(path)
