"""A bar that shows how far training is, with its loss and accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isnan


class Bar:
    """A tqdm bar, or nothing."""

    def __init__(self, shown):
        self._shown = shown

    def tell(self, **numbers: float) -> None:
        """Show numbers beside the bar; those that are not known are left out."""
        if self._shown is not None:
            known = {key: value for key, value in numbers.items() if not isnan(value)}
            self._shown.set_postfix_str(", ".join(f"{key}={value:.4g}" for key, value in known.items()), refresh=False)

    def move(self) -> None:
        if self._shown is not None:
            self._shown.update()


@contextmanager
def bar(total: int, progress: bool, done: int = 0, unit: str = "step") -> Iterator[Bar]:
    """A bar of so many units, or one that shows nothing."""
    if not progress:
        yield Bar(None)
        return
    from tqdm import tqdm

    with tqdm(total=total, initial=done, unit=unit) as shown:
        yield Bar(shown)
