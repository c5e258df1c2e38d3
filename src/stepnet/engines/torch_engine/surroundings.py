"""What a step depends on besides its arguments: random numbers still to be drawn, and the choices of autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

Draws = tuple[Tensor, Tensor | None]


def random_state(device: torch.device) -> Draws:
    """Of the generators of the host and of the device."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_state(device: torch.device, draws: Draws) -> None:
    """So that the same numbers are drawn again."""
    host, other = draws
    torch.set_rng_state(host)
    if other is not None:
        torch.cuda.set_rng_state(other, device)


class Surroundings(NamedTuple):
    """Those of a run at its beginning."""

    device: torch.device
    draws: Draws
    is_autocast: bool
    autocast_dtype: torch.dtype

    @classmethod
    def here(cls, device: torch.device) -> Surroundings:
        kind = device.type
        return cls(device, random_state(device), torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """As they were; afterwards as they are now."""
        after = random_state(self.device)
        set_random_state(self.device, self.draws)
        try:
            with torch.autocast(self.device.type, self.autocast_dtype, self.is_autocast):
                yield
        finally:
            set_random_state(self.device, after)
