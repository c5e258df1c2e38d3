"""Schedules and memory policies as records: their representation, and what they refuse."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

import stepnet as sn
from stepnet import nets
from stepnet.checkpoints import (
    Action,
    Checkpoints,
    Kind,
    Schedule,
    binomial,
    binomial_advances,
    longest,
    mixed,
    mixed_evaluations,
    multistage,
    online,
    repetitions,
    store_all,
    two_level,
    two_level_advances,
    uniform,
)
from stepnet.checkpoints.budget import require_undoable, validate_memory

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
DRAWING = """\
Schedule(binomial: 10 steps, 3 slots, 15 advances, 40 actions)
0 1 2 3 4 5 6 7 8 9
o-------o-----o----<
o       o     o--<
o       o     o<
o       o-o--<
o       o o<
o       o<
o-o-o--<
o o o<
o o<
o<"""


def lines(schedule: Schedule, **options) -> list[str]:
    return schedule.draw(**options).split("\n")


# ---- drawings -------------------------------------------------------------------------------------------------------


def test_a_drawing_of_ten_steps():
    assert binomial(10, 3).draw() == DRAWING


def test_drawings_tell_states_stages_and_disk_apart():
    assert lines(mixed(10, 3))[2:5] == ["o-------o-----o----<", "o       o     s--<", "o       o     s<"]
    assert lines(multistage(10, 2, 1))[2] == "D-------o-----o----<"


def test_drawings_of_runs_of_unknown_length():
    run = two_level(4, 1)
    for _ in range(9):
        run.step()
    assert lines(run.finish())[2:4] == ["D-------D-------D--<", "D       D       D<"]


def test_every_step_has_its_line():
    assert len(lines(binomial(45, 4))) == 2 + 45


def test_long_drawings_are_cut_and_narrowed():
    drawn = lines(binomial(1000, 5), width=80, height=7)
    assert drawn[1] == "25 steps to a column"
    assert drawn[-1] == "... 993 more"
    assert len(drawn) == 2 + 7 + 1
    assert max(map(len, drawn[2:])) <= 80


def test_empty_drawings():
    assert lines(store_all(0))[0].startswith("Schedule(store_all: 0 steps")
    assert lines(store_all(1))[2] == " <"


def test_the_page_shows_what_is_drawn_and_counted(capsys):
    page = PAGE.read_text()
    assert DRAWING in page
    for n in (100, 1000, 1202, 10000):
        for count in (binomial_advances, mixed_evaluations):
            assert f"| {n} | " + " | ".join(str(count(n, s)) for s in (3, 5, 10, 20, 50)) + " |" in page
    namespace: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), namespace)
    assert DRAWING in capsys.readouterr().out


# ---- schedules as records -------------------------------------------------------------------------------------------


def test_actions_are_readable():
    assert [str(action) for action in binomial(3, 1)] == [
        "keep 0 in slot 0",
        "advance 0 -> 2",
        "reverse 3 -> 2",
        "restore 0 from slot 0",
        "advance 0 -> 1",
        "reverse 2 -> 1",
        "restore 0 from slot 0",
        "drop 0 from slot 0",
        "reverse 1 -> 0",
    ]
    assert [str(action) for action in mixed(2, 1)] == [
        "advance 0 -> 1, its stages in slot 0",
        "reverse 2 -> 1",
        "reverse 1 -> 0 by the stages in slot 0",
        "drop 0 from slot 0",
    ]


def test_rows_records_and_iteration_agree():
    schedule = binomial(9000, 3)
    assert len(schedule) == len(schedule.actions) > 2 * 4096
    assert [tuple(row) for row in schedule.actions] == list(schedule)
    assert schedule.records.dtype.names == Action._fields
    assert np.array_equal(schedule.records["stop"], schedule.actions[:, 2])
    assert np.shares_memory(schedule.records, schedule.actions)
    assert all(isinstance(action.kind, Kind) for action in schedule)


def test_schedules_cannot_be_changed():
    schedule = binomial(10, 3)
    with pytest.raises(FrozenInstanceError):
        schedule.slots = 4
    with pytest.raises(ValueError, match="read-only"):
        schedule.actions[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        schedule.records["slot"][0] = 1


def test_schedules_are_copied_and_stored():
    schedule = mixed(100, 4)
    for other in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert np.array_equal(other.actions, schedule.actions)
        assert repr(other) == repr(schedule)


def test_representation_names_the_costs():
    assert repr(binomial(1000, 3)) == "Schedule(binomial: 1000 steps, 3 slots, 12155 advances, 3320 actions)"
    assert "2 slots and 3 on disk" in repr(multistage(100, 2, 3))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((2, 3), np.int64), r"shape \(m, 4\)"),
        (np.zeros((2, 4)), "int64"),
        (np.array([[7, 0, 0, 0]]), r"kind must be within 0\.\.6, found 7\.\.7"),
        (np.array([[0, -1, 0, 0]]), r"start must be within 0\.\.5"),
        (np.array([[0, 0, 6, 0]]), r"stop must be within 0\.\.5"),
        (np.array([[1, 0, 0, 2]]), r"slot must be within -1\.\.1"),
    ],
)
def test_wrong_rows_are_refused(actions, message):
    with pytest.raises(ValueError, match=message):
        Schedule("wrong", 5, 2, actions)


# ---- wrong numbers --------------------------------------------------------------------------------------------------

BY_STEPS = {
    "store_all": store_all,
    "uniform": lambda n: uniform(n, 3),
    "binomial": lambda n: binomial(n, 3),
    "mixed": lambda n: mixed(n, 3),
    "multistage": lambda n: multistage(n, 1, 1),
    "repetitions": lambda n: repetitions(n, 3),
    "binomial_advances": lambda n: binomial_advances(n, 3),
    "mixed_evaluations": lambda n: mixed_evaluations(n, 3),
    "two_level_advances": lambda n: two_level_advances(n, 2, 3),
}
BY_SLOTS = {
    "uniform": lambda s: uniform(9, s),
    "binomial": lambda s: binomial(9, s),
    "mixed": lambda s: mixed(9, s),
    "online": online,
    "two_level": lambda s: two_level(3, s),
    "longest": lambda s: longest(s, 3),
    "repetitions": lambda s: repetitions(9, s),
    "binomial_advances": lambda s: binomial_advances(9, s),
    "mixed_evaluations": lambda s: mixed_evaluations(9, s),
    "Checkpoints": lambda s: Checkpoints(slots=s),
}


@pytest.mark.parametrize("name", BY_STEPS)
def test_wrong_numbers_of_steps_are_refused(name):
    with pytest.raises(ValueError, match="`n_steps` must be at least 0, found -1"):
        BY_STEPS[name](-1)
    for wrong in (True, 10.0, "10", None, [3]):
        with pytest.raises(TypeError, match="`n_steps` must be an integer, found"):
            BY_STEPS[name](wrong)


@pytest.mark.parametrize("name", BY_SLOTS)
def test_wrong_numbers_of_slots_are_refused(name):
    with pytest.raises(ValueError, match="`slots` must be at least 1, found 0"):
        BY_SLOTS[name](0)
    for wrong in (True, 2.0, "2"):
        with pytest.raises(TypeError, match="`slots` must be an integer, found"):
            BY_SLOTS[name](wrong)


def test_other_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="`memory_slots` must be at least 1"):
        multistage(5, 0, 3)
    with pytest.raises(ValueError, match="`disk_slots` must be at least 0"):
        multistage(5, 1, -1)
    with pytest.raises(ValueError, match="`period` must be at least 1"):
        two_level(0, 3)
    with pytest.raises(ValueError, match="`repetitions` must be at least 0"):
        longest(3, -1)
    with pytest.raises(ValueError, match="`width` must be at least 2"):
        binomial(3, 2).draw(width=0)


def test_integers_of_numpy_are_taken():
    assert binomial(np.int32(10), np.int64(3)).draw() == DRAWING


# ---- a memory choice ------------------------------------------------------------------------------------------------


def test_a_choice_by_slots_or_by_bytes():
    assert Checkpoints(slots=10).slots_for(800) == 10
    assert Checkpoints(bytes=10_000).slots_for(800) == 12
    assert Checkpoints(slots=np.int64(3)) == Checkpoints(3)
    assert sn.Checkpoints is Checkpoints
    assert sn.checkpoints.binomial is binomial


def test_a_choice_of_a_directory(tmp_path):
    assert Checkpoints(slots=2, disk=str(tmp_path)).disk == tmp_path
    assert Checkpoints(slots=2, disk="~").disk == Path.home()
    file = tmp_path / "states"
    file.touch()
    with pytest.raises(ValueError, match=r"`disk` must be the path of a directory, but '.*states' is a file"):
        Checkpoints(slots=2, disk=file)
    with pytest.raises(TypeError, match="`disk` must be the path of a directory, found True"):
        Checkpoints(slots=2, disk=True)


def test_wrong_choices_are_refused():
    with pytest.raises(ValueError, match="either `slots` or `bytes`, found neither"):
        Checkpoints()
    with pytest.raises(ValueError, match="either `slots` or `bytes`, found slots=3 and bytes=100"):
        Checkpoints(slots=3, bytes=100)
    with pytest.raises(ValueError, match="`bytes` must be at least 1, found 0"):
        Checkpoints(bytes=0)
    with pytest.raises(TypeError, match="`bytes` must be an integer"):
        Checkpoints(bytes=1e9)
    with pytest.raises(ValueError, match="`bytes` must hold at least one state of 800 bytes, found 100"):
        Checkpoints(bytes=100).slots_for(800)
    with pytest.raises(ValueError, match="`bytes_per_state` must be at least 1"):
        Checkpoints(slots=1).slots_for(0)


# ---- memory policies ------------------------------------------------------------------------------------------------


def test_a_memory_policy_is_a_name_or_checkpoints(tmp_path):
    disk = Checkpoints(slots=2, disk=tmp_path)
    assert validate_memory("all", ("auto", "all")) == "all"
    assert validate_memory(Checkpoints(3), ()) == Checkpoints(3)
    assert validate_memory(10**6, ()) == validate_memory(np.int32(10**6), ()) == Checkpoints(bytes=10**6)
    assert validate_memory(disk, (), may_use_disk=True) is disk


@pytest.mark.parametrize(
    "memory", ["al", "", 0, -1, True, np.True_, 1.5, None, ["all"], Checkpoints(2, disk="somewhere")]
)
def test_other_memory_policies_are_refused_in_one_sentence(memory):
    with pytest.raises(ValueError, match="`memory` must be one of 'auto', 'all', a number of bytes or `Checkpoints`"):
        validate_memory(memory, ("auto", "all"))


def bad_memory_calls():
    """Every public way in that takes a memory policy."""
    problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    how = {"steps": 2, "memory": "some"}
    net = nets.resnet(2, 1, 4, 3)
    yield lambda: sn.gradient(problem, "rk4", end_gradient=[1.0], **how)
    yield lambda: sn.jacobian(problem, "rk4", **how)
    yield lambda: sn.hvp(problem, "rk4", np.sum, y0=[1.0], **how)
    yield lambda: nets.resnet(2, 1, 4, 3, memory="some")
    yield lambda: net.gradient(np.ones((2, 2)), end_gradient=np.ones((2, 1)), memory="some")


def test_every_way_in_refuses_a_memory_policy_alike():
    for call in bad_memory_calls():
        with pytest.raises(
            ValueError, match=r"`memory` must be one of 'auto', 'all', .* a number of bytes or `Checkpoints`"
        ):
            call()


def test_undone_steps_need_a_scheme_that_can_undo_them():
    require_undoable(True, "verlet")
    with pytest.raises(ValueError, match=r"reversible. needs invertible steps, .*, not 'rk4'"):
        require_undoable(False, "rk4")
    problem = sn.ODE(lambda t, y: -y, [1.0], (0.0, 1.0))
    for call in (
        lambda: sn.gradient(problem, "rk4", end_gradient=[1.0], steps=2, memory="reversible"),
        lambda: nets.resnet(2, 1, 4, 3, scheme="rk4", memory="reversible"),
    ):
        with pytest.raises(ValueError, match=r"needs invertible steps, .*, not 'rk4'"):
            call()
