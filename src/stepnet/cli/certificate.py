"""`stepnet certificate`."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import click

from stepnet.cli.error_messages import show_errors


@click.command(short_help="Bound the amplification of a net.")
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.option("--limit", type=float, default=10.0, show_default=True, help="Amplification that counts as stable.")
@click.option("--box", help="Lowest and highest input a,b: bounds hold for inputs between them.")
@click.option("--json", "is_json", is_flag=True, help="Print the bounds as JSON.")
def certificate(model: str, limit: float, box: str | None, is_json: bool) -> None:
    """Bound how much each block of the net in the file MODEL amplifies perturbations.

    MODEL is a safetensors file written by `Net.save`. The exit status is 0 if the net is stable and 2 if it is not.
    """
    from stepnet.nets import Net
    from stepnet.stability import certificate as certify

    with show_errors():
        found = certify(Net.load(model), limit=limit, box=None if box is None else _parse_box(box))
    click.echo(json.dumps(_as_dict(found), indent=2) if is_json else str(found))
    raise SystemExit(0 if found.is_stable else 2)


def _parse_box(text: str) -> tuple[float, float]:
    """Two numbers."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"`--box` must be two numbers a,b, found {text!r}") from None
    return low, high


def _as_dict(found: Any) -> dict[str, Any]:
    names = ("name", "h", "lower", "upper", "safe_h")
    blocks = [
        {**{name: _as_number(getattr(each, name)) for name in names}, "steps": [_as_number(x) for x in each.steps]}
        for each in found.blocks
    ]
    return {
        "is_stable": found.is_stable, "verdict": found.verdict, "lipschitz": _as_number(found.lipschitz),
        "blocks": blocks,
    }  # fmt: skip


def _as_number(value: Any) -> Any:
    """A number that JSON knows, null for others."""
    return value if isinstance(value, str) else float(value) if isfinite(value) else None
