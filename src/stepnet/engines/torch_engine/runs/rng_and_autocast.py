"""What a step depends on besides its arguments: random generators, buffers of modules, and autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

SMALL = 2**16  # entries of a buffer that is copied even if its version is unchanged: not all kernels update it


def is_transformed() -> bool:
    """Whether tensors are transformed by anything but reverse-mode autograd: `torch.func`, or forward mode."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_written_down() -> bool:
    """Whether the operations are exported for use in other processes: `torch.export`, or `torch.jit.trace`."""
    return torch.jit.is_tracing() or torch.compiler.is_exporting()


class SavedBuffer(NamedTuple):
    """A buffer by its owner and name, the node of its graph if it has one, and a copy of its values."""

    owner: nn.Module
    name: str
    tensor: Tensor
    node: object = None
    version: int = 0
    numbers: Tensor | None = None


class SavedState(NamedTuple):
    """Random generators of the host and of the device, and buffers."""

    host: Tensor
    other: Tensor | None
    buffers: tuple[SavedBuffer, ...]

    @property
    def n_bytes(self) -> int:
        """Memory in bytes."""
        copies = (each.numbers for each in self.buffers)
        return sum(x.nbytes for x in (self.host, self.other, *copies) if x is not None)


class SideState(NamedTuple):
    """State that functions read and change besides their arguments: generators of a device, buffers of modules."""

    device: torch.device
    modules: tuple[nn.Module, ...] = ()

    def save(self, last: SavedState | None = None) -> SavedState:
        """A copy; what has not changed since the last one is shared with it."""
        owners = dict.fromkeys(inner for module in self.modules for inner in module.modules())
        places = [(module, *named) for module in owners for named in module.named_buffers("", False, False)]
        earlier = () if last is None or len(last.buffers) != len(places) else last.buffers
        buffers = [_save(*place, earlier[i] if earlier else None) for i, place in enumerate(places)]
        other = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return SavedState(torch.get_rng_state(), other, tuple(buffers))

    def restore(self, saved: SavedState) -> None:
        """Restore a copy, so that functions draw the same numbers and see the same buffers again."""
        torch.set_rng_state(saved.host)
        if saved.other is not None:
            torch.cuda.set_rng_state(saved.other, self.device)
        with torch.no_grad():
            for owner, name, tensor, _, _, numbers in saved.buffers:
                if getattr(owner, name) is not tensor:
                    owner._buffers[name] = tensor
                if numbers is not None:  # through `data`, which autograd does not track as a modification
                    tensor.data.copy_(numbers)

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """Restore the present state afterwards."""
        now = self.save()
        try:
            yield
        finally:
            self.restore(now)


def _save(owner: nn.Module, name: str, tensor: Tensor, last: SavedBuffer | None) -> SavedBuffer:
    if tensor.requires_grad or tensor.layout != torch.strided:
        return SavedBuffer(owner, name, tensor, tensor.grad_fn)
    version = 0 if tensor.is_inference() else tensor._version
    is_same = last is not None and last.tensor is tensor and last.version == version and tensor.numel() > SMALL
    numbers = last.numbers if is_same else tensor.detach().clone()  # type: ignore[union-attr]
    return SavedBuffer(owner, name, tensor, None, version, numbers)


class RunContext(NamedTuple):
    """Side state and autocast of a run at its beginning."""

    side: SideState
    saved: SavedState
    autocast_dtype: torch.dtype | None

    @classmethod
    def capture(cls, device: torch.device, modules: tuple[nn.Module, ...] = ()) -> RunContext:
        side = SideState(device, modules)
        kind = device.type
        return cls(side, side.save(), torch.get_autocast_dtype(kind) if is_autocast(kind) else None)

    @contextmanager
    def restore_context(self) -> Iterator[None]:
        """Restore the initial context, and the present one afterwards."""
        with self.side.preserve(), self._autocast():
            self.side.restore(self.saved)
            yield

    def _autocast(self) -> AbstractContextManager[Any]:
        kind = self.side.device.type
        if self.autocast_dtype is None and not is_autocast(kind):
            return nullcontext()
        return torch.autocast(kind, self.autocast_dtype, self.autocast_dtype is not None, cache_enabled=False)


def disable_autocast_cache(kind: str) -> AbstractContextManager[Any]:
    """Keep autocast, but cast weights at every call: a recorded cast belongs to a single graph."""
    return torch.autocast(kind, cache_enabled=False) if is_autocast(kind) else nullcontext()


def is_autocast(kind: str) -> bool:
    """Whether autocast is enabled for this type of device."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
