"""A progress bar with loss and accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm


class Bar:
    """A tqdm bar, or nothing."""

    def __init__(self, shown: tqdm | None) -> None:
        self._shown = shown

    def tell(self, **numbers: float) -> None:
        """Show numbers next to the bar; NaN is omitted."""
        if self._shown is not None:
            known = {key: value for key, value in numbers.items() if not isnan(value)}
            self._shown.set_postfix_str(", ".join(f"{key}={value:.4g}" for key, value in known.items()), refresh=False)

    def move(self) -> None:
        if self._shown is not None:
            self._shown.update()


@contextmanager
def show_bar(total: int, progress: bool, done: int = 0, unit: str = "step") -> Iterator[Bar]:
    """A progress bar with `total` units, or one that shows nothing."""
    if not progress:
        yield Bar(None)
        return
    from tqdm import tqdm

    with tqdm(total=total, initial=done, unit=unit) as shown:
        yield Bar(shown)
