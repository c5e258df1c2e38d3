"""Checkpoint schedules for adjoints as arrays of integers, and their costs."""

from stepnet.checkpoints.actions import Action, Kind
from stepnet.checkpoints.budget import Checkpoints
from stepnet.checkpoints.counts import (
    binomial_advances,
    longest,
    mixed_evaluations,
    repetitions,
    two_level_advances,
)
from stepnet.checkpoints.executor import ScheduledRun, StageKeepingRun, execute
from stepnet.checkpoints.known_length import binomial, mixed, multistage, store_all, uniform
from stepnet.checkpoints.schedule import Schedule
from stepnet.checkpoints.unknown_length import Online, TwoLevel, online, two_level

__all__ = [
    "Action", "Checkpoints", "Kind", "Online", "Schedule", "ScheduledRun", "StageKeepingRun", "TwoLevel", "binomial",
    "binomial_advances", "execute", "longest", "mixed", "mixed_evaluations", "multistage", "online", "repetitions",
    "store_all", "two_level", "two_level_advances", "uniform",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
