"""Ctrl-C works in tests, however they were started: a shell in the background hands down a signal that is ignored."""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
