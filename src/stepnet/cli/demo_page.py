"""The page of `stepnet demo`: the tables and figures of all sections in one HTML file."""

from __future__ import annotations

import html
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import click

from stepnet import __version__
from stepnet.storage.atomic_files import write_file

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>stepnet demo</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
pre {{ font-size: 0.8rem; line-height: 1.35; overflow-x: auto; padding: 0.8rem; background: #8881; }}
img {{ max-width: 100%; background: white; border-radius: 4px; }}
h2 {{ margin-top: 2.5rem; border-bottom: 1px solid #8886; }}
</style>
<h1>stepnet demo</h1>
<p>Written by <code>stepnet demo</code>, version {version}, on {machine}. Every number and figure below was computed in
this run.</p>
<ul>
{contents}
</ul>
{chapters}
</html>
"""
FIGURE = re.compile(r"[^\s,]+\.(?:png|gif)")


class Chapter:
    """A section of the demo: what it printed, and the figures that it named."""

    def __init__(self, title: str, folder: Path) -> None:
        self.title = title
        self.lines: list[str] = []
        self._folder = folder

    def echo(self, text: str) -> None:
        """Print a text and keep it for the page."""
        click.echo(text)
        self.lines.append(text)

    def list_figures(self) -> list[str]:
        """The names of the figures in the folder that the text names."""
        named = [Path(found).name for found in FIGURE.findall("\n".join(self.lines))]
        return [name for name in dict.fromkeys(named) if (self._folder / name).is_file()]

    def as_html(self, anchor: str) -> str:
        """The title, the tables, and the figures."""
        blocks = "\n".join(self.lines).strip("\n").split("\n\n")
        tables = [block for block in blocks if not FIGURE.search(block)]
        texts = [f"<pre>{html.escape(block)}</pre>" for block in tables]
        images = [f'<p><img src="{html.escape(name)}" alt="{html.escape(name)}"></p>' for name in self.list_figures()]
        return "\n".join([f'<h2 id="{anchor}">{html.escape(self.title)}</h2>', *texts, *images])


def write_page(chapters: Sequence[Chapter], folder: Path) -> Path:
    """Write index.html; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    anchors = [f"part{i}" for i in range(1, len(chapters) + 1)]
    pairs = list(zip(anchors, chapters, strict=True))
    text = PAGE.format(
        version=__version__,
        machine=html.escape(f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"),
        contents="\n".join(f'<li><a href="#{anchor}">{html.escape(each.title)}</a></li>' for anchor, each in pairs),
        chapters="\n".join(each.as_html(anchor) for anchor, each in pairs),
    )
    write_file(folder / "index.html", lambda file: file.write(text.encode()))
    return folder / "index.html"
