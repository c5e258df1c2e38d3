"""`stepnet ...` on the command line."""

from stepnet.cli.commands import main

__all__ = ["main"]
