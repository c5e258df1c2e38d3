"""Writing and reading files: replaced at once, never a device, never beyond their size, and errors that name them."""

from __future__ import annotations

import json
import os
import stat
import threading
import zipfile

import numpy as np
import pytest
from storage.formats import FORMATS, PROBLEM, X, Y, disk_gradient, swept, trained

import stepnet as sn
from stepnet import training
from stepnet.errors import DamagedFile, FolderInUse
from stepnet.estimators import NetClassifier
from stepnet.storage.atomic_files import write_file, write_private_file, write_scratch_file
from stepnet.storage.folder_locks import hold_lock
from stepnet.storage.stored_arrays import read_npz

WRITERS = [write_file, write_scratch_file, write_private_file]
writers = pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)


# ---- writing ---------------------------------------------------------------------------------------------------------


@writers
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(write, tmp_path):
    def fails(file):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    write(tmp_path / "kept", b"old")
    with pytest.raises(OSError, match=r"No space left on device while writing.*kept"):
        write(tmp_path / "kept", fails)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("kept", b"old")]


@pytest.mark.parametrize("write", [write_file, write_scratch_file], ids=lambda write: write.__name__)
def test_links_and_permissions_stay(write, tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "target").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o640


def test_private_files_are_for_their_owner_alone_and_replace_links(tmp_path):
    (tmp_path / "target").write_bytes(b"of others")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "open").write_bytes(b"old")
    (tmp_path / "open").chmod(0o666)
    for name in ("link", "open", "fresh"):
        write_private_file(tmp_path / name, b"new")
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_bytes() == b"new"
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert (tmp_path / "target").read_bytes() == b"of others"


def test_devices_are_written_to_and_not_replaced():
    write_file(os.devnull, b"text")  # type: ignore[arg-type]
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@writers
def test_what_killed_processes_left_is_removed(write, tmp_path):
    write(tmp_path / "kept", b"old")
    seen = []
    write(tmp_path / "kept", lambda file: (seen.append(file.name), file.write(b"new")))
    dead = seen[0].replace(f"-{os.getpid()}-", "-4194305-")  # beyond the largest number of a process
    with open(dead, "wb") as file:
        file.write(b"half")
    write(tmp_path / "kept", b"newer")
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_threads_replace_one_file_without_loss(tmp_path):
    contents = [bytes([i]) * 5000 for i in range(4)]

    def save(content):
        for _ in range(20):
            write_scratch_file(tmp_path / "kept", content)
            assert (tmp_path / "kept").read_bytes() in contents

    threads = [threading.Thread(target=save, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


BAD_PATHS = [1, True, None, b"bytes", 3.5, ["a"], "null\0inside"]


@pytest.mark.parametrize("path", BAD_PATHS, ids=repr)
def test_what_is_no_path_is_refused(path, tmp_path):
    run, net = sn.start(PROBLEM, "rk4", steps=4), sn.nets.resnet(2, 2, 2, 2)
    model = NetClassifier(width=4, steps=2, epochs=1).fit(X, Y)
    ways_in = {
        "save": run.save,
        "net": net.save,
        "load": sn.nets.load,
        "estimator": model.save,
        "read": NetClassifier.load,
        "run": training.load,
    }
    if path is not None:
        ways_in["restore"] = lambda path: sn.start(PROBLEM, "rk4", steps=4, restore=path)
        ways_in["sweep"] = lambda path: sn.sweep(PROBLEM, "rk4", {"k": [1.0]}, steps=4, path=path)
    for way_in in ways_in.values():
        with pytest.raises((TypeError, ValueError), match=r"`(path|restore)` must be the path of"):
            way_in(path)


# ---- locks -----------------------------------------------------------------------------------------------------------


def test_a_thread_is_kept_out_as_a_process_is(tmp_path):
    with (
        hold_lock(tmp_path),
        pytest.raises(FolderInUse, match=f"in use by process {os.getpid()} on"),
        hold_lock(tmp_path),
    ):
        pass
    with hold_lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_hold_the_lock_of_its_parent(tmp_path):
    """It would keep the folder locked after the parent is gone."""
    reading, writing = os.pipe()
    with hold_lock(tmp_path):
        pid = os.fork()
        if pid == 0:
            os.read(reading, 1)  # lives on until the parent has taken the lock again
            os._exit(0)
    with hold_lock(tmp_path):
        os.write(writing, b"x")
        assert os.waitpid(pid, 0)[1] == 0
    os.close(reading)
    os.close(writing)


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path):
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match=r"\.lock"), hold_lock(tmp_path / "folder"):
        pass
    assert (tmp_path / "target").read_bytes() == b"precious"


# ---- reading ---------------------------------------------------------------------------------------------------------


def bomb(path, name: str) -> None:
    """A small file that claims to hold a gigabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (2**27,)}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(2**10):
            file.write(bytes(2**20))


def test_compressed_arrays_are_refused_before_they_are_read(tmp_path):
    bomb(tmp_path / "run.npz", "work")
    assert (tmp_path / "run.npz").stat().st_size < 2**23
    with pytest.raises(DamagedFile, match=r"run\.npz.*compressed"):
        sn.start(PROBLEM, "rk4", steps=4, restore=tmp_path / "run.npz")
    assert read_npz(tmp_path / "run.npz", ("another",)) == {}


def with_arrays(path, **changed) -> None:
    with np.load(path) as stored:
        arrays = dict(stored)
    np.savez(path, **(arrays | changed))


RUN_FIELDS = {
    "n": 2**40, "reals": 10**6, "step": -1, "n_steps": 2**62, "slice": 2**62, "stride": 10**9, "saved": 10**9,
    "next_save": -5, "save_every": 1, "n_found": 10**6, "n_pieces": 10**6, "is_cut": 1, "t": np.nan, "h": 0.0,
    "t_end": 1e300, "t0": -1e300, "has_slope": 7, "max_steps": 2**62, "row_in": 10**6, "stage": 10**6, "part": 10**6,
    "error_1": 0.0, "evaluations": -1, "t_low": 1e10, "per_step": 2**40,
}  # fmt: skip


@pytest.mark.parametrize("name", ["integrator, adaptive", "integrator, even steps"])
def test_fields_of_a_stored_run_are_checked_or_not_used(name, tmp_path, counted):
    """Counts, sizes and places follow from the problem; only what changes from step to step is read, and checked."""
    kind = FORMATS[name]
    kind.save(tmp_path, kind.versions()[0])
    wanted, original = kind.read(tmp_path), (tmp_path / "run.npz").read_bytes()
    for field, value in RUN_FIELDS.items():
        (tmp_path / "run.npz").write_bytes(original)
        with np.load(tmp_path / "run.npz") as stored:
            run = stored["run"].copy()
        run[field] = value
        with_arrays(tmp_path / "run.npz", run=run)
        assert used(kind, tmp_path) in (wanted, "refused"), field
        counted("fields of stored runs", f"{name} {field}", 2 * len(RUN_FIELDS))


def used(kind, folder) -> bytes | str:
    """What is read, or that it is refused by its name."""
    try:
        return kind.read(folder)
    except DamagedFile as refused:
        return "refused" if "run.npz" in str(refused) else str(refused)


NETS = {
    "indices beyond": ("indices", lambda a: np.where(np.arange(a.size) == 0, 10**6, a)),
    "indices below": ("indices", lambda a: a - 1),
    "bounds beyond": ("indptr", lambda a: a + (np.arange(a.size) == 1) * 10**6),
    "bounds that do not begin at 0": ("indptr", lambda a: a + 1),
    "bounds that go back": ("indptr", lambda a: a[::-1].copy()),
    "too few bounds": ("indptr", lambda a: a[:-1]),
    "a shape without rows": ("shape", lambda a: a * 0),
    "a shape of many columns": ("shape", lambda a: a * 2**40),
    "numbers that are not finite": ("data", lambda a: a * np.nan),
    "more numbers than places": ("data", lambda a: np.append(a, 1.0)),
}


@pytest.mark.parametrize("case", NETS)
def test_operators_of_a_net_are_checked(case, tmp_path):
    from safetensors.numpy import load, save

    kind, path = FORMATS["net on a graph"], tmp_path / "net.safetensors"
    kind.save(tmp_path, kind.versions()[0])
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors, (part, change) = load(content), NETS[case]
    tensors[f"operators.0.{part}"] = change(tensors[f"operators.0.{part}"]).astype(tensors[f"operators.0.{part}"].dtype)
    path.write_bytes(save(tensors, metadata=header["__metadata__"]))
    with pytest.raises(DamagedFile, match=r"net\.safetensors' holds a net that cannot be built"):
        kind.read(tmp_path)


@pytest.mark.parametrize("name", ["slots.mean", "slots.squares", "theta", "good", "best", "history", "counts", "marks"])
def test_arrays_of_a_run_are_checked(name, tmp_path):
    from safetensors.numpy import load, save

    trained(tmp_path, 2, resume=False)
    path = tmp_path / "state.safetensors"
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors = load(content)
    tensors[name] = tensors[name].ravel()[:1]
    path.write_bytes(save(tensors, metadata=header["__metadata__"]))
    with pytest.raises(ValueError, match=r"state\.safetensors|directory of this run"):
        trained(tmp_path, 3, resume=True)


def test_a_state_beside_another_description_is_refused(tmp_path):
    trained(tmp_path / "one", 2, resume=False)
    trained(tmp_path / "other", 2, resume=False)
    told = json.loads((tmp_path / "one" / "run.json").read_text())
    (tmp_path / "one" / "run.json").write_text(json.dumps(told | {"theta": "another"}))
    with pytest.raises(ValueError, match=r"belongs to another run\.json"):
        training.load(tmp_path / "one")


# ---- sweeps ----------------------------------------------------------------------------------------------------------


def test_chunks_without_a_manifest_are_not_adopted(tmp_path):
    swept(tmp_path, 2**28)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ValueError, match="`path` must be a new or empty folder"):
        swept(tmp_path, 2**28)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_manifest_is_named(content, tmp_path):
    swept(tmp_path, 2**28)
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"manifest\.json|holds another sweep"):
        swept(tmp_path, 2**28)


CHUNKS = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:200]),
    "other shape": lambda path: with_arrays(path, **{"all.y": np.zeros((1, 1, 2))}),
    "other type": lambda path: with_arrays(path, **{"all.y": np.zeros((3, 1, 2), np.float32)}),
    "other numbers": lambda path: with_arrays(path, **{"mean.mean": np.zeros((1, 2))}),
    "another chunk": lambda path: path.write_bytes((path.parent / "000002.npz").read_bytes()),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_a_chunk_that_is_another_one_is_refused_and_done_again_when_it_is_deleted(name, tmp_path):
    wanted = swept(tmp_path, 2**28)
    path = tmp_path / "chunks" / "000001.npz"
    CHUNKS[name](path)
    with pytest.raises(DamagedFile, match=r"000001\.npz.*delete this file"):
        swept(tmp_path, 2**28)
    path.unlink()
    assert np.array_equal(swept(tmp_path, 2**28).results["all"].y, wanted.results["all"].y)


def test_a_file_among_the_chunks_that_is_none_is_refused(tmp_path):
    swept(tmp_path, 2**28)
    (tmp_path / "chunks" / "note.npz").write_bytes(b"")
    with pytest.raises(DamagedFile, match=r"note\.npz' is not a chunk of this sweep"):
        swept(tmp_path, 2**28)


def test_large_arrays_are_checked(tmp_path):
    swept(tmp_path, 1)
    (chunk,) = [file for file in (tmp_path / "arrays" / "all" / "y" / "c" / "1").rglob("*") if file.is_file()]
    original = chunk.read_bytes()
    for content in (original[:-1], original[:8] + b"\x01" + original[9:]):
        chunk.write_bytes(content)
        with pytest.raises(DamagedFile, match=r"arrays/all/y/c/1.*delete the folder"):
            swept(tmp_path, 1)
    chunk.write_bytes(original)
    told = json.loads((tmp_path / "arrays" / "all" / "y" / "zarr.json").read_text())
    told["codecs"] = [{"name": "numcodecs.pickle", "configuration": {}}]
    (tmp_path / "arrays" / "all" / "y" / "zarr.json").write_text(json.dumps(told))
    with pytest.raises(DamagedFile, match="its description differs in codecs"):
        swept(tmp_path, 1)


def test_a_damaged_note_of_progress_is_not_gone_on_from(tmp_path):
    wanted = disk_gradient(tmp_path / "whole")
    disk_gradient(tmp_path / "kept", 4)
    (note,) = (tmp_path / "kept").rglob("progress.npz")
    note.write_bytes(note.read_bytes()[:-50])
    assert np.array_equal(disk_gradient(tmp_path / "kept").y0, wanted.y0)
