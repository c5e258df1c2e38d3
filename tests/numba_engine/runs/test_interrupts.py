"""Ctrl-C ends a run and keeps the computed part: on every rung, for every kind of steps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from numba_engine.runs import child

import stepnet as sn
from stepnet.engines.numba_engine.rhs.ladder import CompiledRHS
from stepnet.engines.numba_engine.runs import driver
from stepnet.engines.numba_engine.runs.job import Job

SOON = 5.0  # seconds; half a second is promised, the rest is for busy machines

# Every case is run twice in one process: shortly, to compile, then for ages, until a timer presses Ctrl-C.
PROGRAM = """
    import json, os, signal, sys, threading, time
    import numba, numpy as np
    import stepnet as sn

    rung = sys.argv[1]

    def slope(t, y):
        return -0.1 * y

    if rung != "address":
        os.environ["STEPNET_RUNG"] = rung
    if rung == "address":
        @numba.cfunc("int32(float64, CPointer(float64), CPointer(float64), CPointer(float64), int64)")
        def function(t, y, dy, p, n):
            for i in range(n):
                dy[i] = -0.1 * y[i]
            return 0
    else:
        function = slope

    AGES = 10**13
    ode = lambda t1: sn.ODE(function, [1.0, 2.0], (0.0, t1))
    pair = lambda t1: sn.SecondOrder(function, [1.0, 2.0], [0.0, 0.0], (0.0, t1))
    split = lambda t1: sn.Split((function, function), [1.0, 2.0], (0.0, t1))
    given = lambda t1: {"steps": max(10, round(t1 * 1e5)), "save_every": 10**13}
    free = lambda t1: {"max_step": 1e-5, "max_steps": 10**15, "save_every": 10**13}
    cases = {
        "fixed": (ode, "rk4", given),
        "adaptive": (ode, "dopri5", free),
        "splitting": (pair, "verlet", given),
        "split": (split, "strang", given),
        "multistep": (ode, "ab4", given),
        "low storage": (ode, "carpenter_kennedy54", given),
        "stabilised": (ode, "rkl2", given),
    }
    pressed = []

    def press():
        pressed.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted(name, **how):
        make, scheme, steps = cases[name]
        sn.solve(make(1e-3), scheme, **steps(1e-3), **how)
        timer = threading.Timer(0.15, press)
        timer.start()
        caught = ""
        try:
            solution = sn.solve(make(1e8), scheme, **steps(1e8), **how)
        except KeyboardInterrupt as error:
            caught, solution = type(error).__name__, error.solution
        waited = time.perf_counter() - pressed[-1]
        timer.join()
        exact = np.exp(-0.1 * solution.t[-1]) if make is ode else np.nan
        return {
            "caught": caught,
            "status": solution.status.name,
            "success": solution.success,
            "message": solution.message,
            "rung": solution.statistics.rung,
            "t": list(solution.t),
            "finite": bool(np.isfinite(solution.y).all()),
            "error": abs(float(solution.y[-1, 0]) / exact - 1),
            "accepted": solution.statistics.accepted,
            "waited": waited,
            "restored": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        }

    if rung != "compiled":  # the loop over slices is the same for all; the rungs differ
        del cases["split"], cases["low storage"], cases["stabilised"]
    results = {name: interrupted(name) for name in cases}
    results["check=False"] = interrupted("fixed", check=False)
    results["check=False adaptive"] = interrupted("adaptive", check=False)
    again = sn.solve(ode(1.0), "rk4", steps=10)
    results["again"] = {"success": again.success}
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
        results["plain"] = "nothing happened"
    except KeyboardInterrupt as error:
        results["plain"] = type(error).__name__
    print(json.dumps(results))
"""
SOME = ["fixed", "adaptive", "splitting", "multistep"]
CASES = {"compiled": [*SOME, "split", "low storage", "stabilised"], "traced": SOME, "python": SOME, "address": SOME}
RUNGS = list(CASES)
every_case = pytest.mark.parametrize(("rung", "case"), [(rung, case) for rung in RUNGS for case in CASES[rung]])


@cache
def results(rung: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), rung],
        capture_output=True,
        text=True,
        timeout=child.PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@every_case
def test_ctrl_c_ends_a_run_and_keeps_its_part(rung, case):
    found = results(rung)[case]
    assert found["caught"] == "Interrupted"
    assert found["status"] == "INTERRUPTED"
    assert not found["success"]
    assert "interrupted by the user" in found["message"]
    assert found["rung"] == rung
    assert found["accepted"] > 0
    assert found["t"][0] == 0.0
    assert 0.0 < found["t"][-1] < 1e8
    assert found["finite"]
    if case not in ("splitting", "split"):
        assert found["error"] < 1e-6  # the state belongs to its time


@every_case
def test_ctrl_c_is_answered_soon(rung, case):
    assert results(rung)[case]["waited"] < SOON


@pytest.mark.parametrize("case", ["check=False", "check=False adaptive"])
@pytest.mark.parametrize("rung", RUNGS)
def test_an_interrupted_run_is_returned_if_asked_for(rung, case):
    found = results(rung)[case]
    assert found["caught"] == ""
    assert found["status"] == "INTERRUPTED"
    assert found["t"][-1] > 0.0


@pytest.mark.parametrize("rung", RUNGS)
def test_after_an_interrupt_all_is_as_before(rung):
    found = results(rung)
    assert all(found[case]["restored"] for case in CASES[rung])
    assert found["again"]["success"]
    assert found["plain"] == "KeyboardInterrupt"


def test_a_signal_from_outside_ends_a_slow_right_hand_side():
    """Each call takes 0.2 s; the answer must not wait for a slice of 32 steps."""
    program = """
        import sys, time
        import stepnet as sn

        def slow(t, y):
            if t > 0:
                print("running", flush=True)
                time.sleep(0.2)
            return -y

        try:
            sn.solve(sn.ODE(slow, [1.0], (0.0, 1.0)), "rk4", steps=1000)
        except sn.Interrupted as stop:
            print(stop.solution.status.name, len(stop.solution.t), flush=True)
            sys.exit(0)
        sys.exit(1)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        for _ in range(6):  # one step takes four calls, three of them slow at first
            assert process.stdout.readline().strip() == "running"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SOON)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:]
    status, count = out.split()[-2:]
    assert status == "INTERRUPTED"
    assert int(count) >= 2


def test_a_second_ctrl_c_does_not_wait():
    """One call takes ages; the first Ctrl-C waits for it, the second does not."""
    program = """
        import os, signal, sys, threading, time
        import stepnet as sn

        def stuck(t, y):
            if t > 0:
                print("running", flush=True)
                for _ in range(3000):
                    time.sleep(0.1)
            return -y

        try:
            sn.solve(sn.ODE(stuck, [1.0], (0.0, 1.0)), "rk4", steps=10)
        except KeyboardInterrupt as stop:
            print(type(stop).__name__, flush=True)
            sys.exit(0)
        sys.exit(1)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline().strip() == "running"
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SOON)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:]
    assert out.strip() in ("Interrupted", "KeyboardInterrupt")


def test_a_keyboard_interrupt_of_the_right_hand_side_is_an_interrupt():
    def presses(t, y):
        if t > 0.5:
            raise KeyboardInterrupt
        return -y

    os.environ["STEPNET_RUNG"] = "python"
    try:
        with pytest.raises(sn.Interrupted) as caught:
            sn.solve(sn.ODE(presses, [1.0], (0.0, 1.0)), "rk4", steps=100)
    finally:
        del os.environ["STEPNET_RUNG"]
    assert caught.value.solution.status is sn.Status.INTERRUPTED
    solution = caught.value.solution
    assert solution.t[-1] == pytest.approx(0.5, rel=1e-14)
    step = 1 - 0.01 + 0.01**2 / 2 - 0.01**3 / 6 + 0.01**4 / 24
    np.testing.assert_allclose(solution.y[:, 0], step ** np.arange(51), rtol=1e-14)


def decay(t, y):
    return -y


def test_other_threads_can_solve():
    expected = sn.solve(sn.ODE(decay, [1.0], (0.0, 1.0)), "dopri5").y[-1, 0]  # everything is compiled from here on
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: sn.solve(sn.ODE(decay, [1.0], (0.0, 1.0)), "dopri5").y[-1, 0], range(8)))
    assert found == [expected] * 8


def test_threads_may_all_solve_for_the_first_time_at_once():
    """In a fresh process, so that every thread finds kernels and right-hand side not yet compiled."""
    program = """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        import stepnet as sn

        gate = threading.Barrier(4)

        def decay(t, y):
            return -y

        def work(_):
            gate.wait()
            return sn.solve(sn.ODE(decay, [1.0], (0.0, 1.0)), "dopri5").y[-1, 0]

        with ThreadPoolExecutor(4) as pool:
            print(len(set(pool.map(work, range(4)))))
    """
    assert child.succeed(program).strip() == "1"


def test_a_handler_of_the_user_is_left_alone():
    calls = []
    old = signal.signal(signal.SIGINT, lambda *_: calls.append("pressed"))
    try:
        mine = signal.getsignal(signal.SIGINT)
        sn.solve(sn.ODE(decay, [1.0], (0.0, 1.0)), "rk4", steps=10)
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, old)
    assert calls == []


def test_the_first_slice_is_by_work():
    """One attempt where states are long, whatever an evaluation is said to cost; as ever where they are short."""
    found = {}
    for n in (1, 1000, 5_000_000):
        work = np.broadcast_to(0.0, (12, n))
        for cost in (1.0, 1e-8):  # a C function, a short trace
            fields = (CompiledRHS(0, np.zeros(0), "address", cost=cost),)
            found[n, cost] = driver._choose_first_attempts(Job(None, None, work, 1, fields, np.dtype(float), None))
    assert found[5_000_000, 1.0] == 1
    assert found[1, 1.0] == found[1000, 1.0] == driver.FIRST_SLICE
    assert found[1, 1e-8] > 1000


def test_an_interrupt_waits_for_few_steps_of_a_long_state():
    """The function is compiled and cheap to call; the interrupt is there before the first step."""
    program = """
        import os, signal
        import numba, numpy as np
        import stepnet as sn

        @numba.cfunc("int32(float64, CPointer(float64), CPointer(float64), CPointer(float64), int64)")
        def slopes(t, y, dy, p, n):
            for i in range(n):
                dy[i] = -y[i]
            return 0

        sn.solve(sn.ODE(slopes, [1.0], (0.0, 1.0)), "rk4", steps=10, save_every=0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        problem = sn.ODE(slopes, np.ones(2_000_000), (0.0, 1.0))
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        try:
            sn.solve(problem, "rk4", steps=100_000, save_every=0)
        except KeyboardInterrupt as error:
            found = getattr(error, "solution", None)
            print(0 if found is None else found.statistics.accepted)
    """
    assert int(child.succeed(program)) <= 64


EXITS = {
    "right-hand side": "sn.solve(sn.ODE(leave, [1.0], SPAN), 'rk4', steps=9)",
    "right-hand side, adaptive": "sn.solve(sn.ODE(leave, [1.0], SPAN), 'dopri5')",
    "check=False": "sn.solve(sn.ODE(leave, [1.0], SPAN), 'rk4', steps=9, check=False)",
    "event": "sn.solve(sn.ODE(decay, [1.0], SPAN), 'dopri5', events=lambda t, y: leave(t, y)[0] + 5)",
    "reset": "sn.solve(sn.ODE(decay, [1.0], SPAN), 'dopri5', events=sn.Event(lambda t, y: y[0] - 0.5, reset=leave))",
    "projection": "sn.solve(sn.ODE(decay, [1.0], SPAN), 'rk4', steps=9, project=leave)",
    "solve_ivp": "sn.solve_ivp(leave, SPAN, [1.0])",
    "start": "sn.start(sn.ODE(leave, [1.0], SPAN), 'rk4', steps=9).run_to(1.0)",
    "gradient": "sn.gradient(sn.ODE(leave, [1.0], SPAN, vjp=lambda t, y, w: -w), 'rk4', first, steps=9)",
    "pullback": "sn.gradient(sn.ODE(decay, [1.0], SPAN, vjp=lambda t, y, w: leave(1, w)), 'rk4', first, steps=9)",
    "ensemble": "sn.solve_ensemble(sn.ODE(leave, [1.0], SPAN), 'rk4', y0=[[1.0]] * 3, steps=9)",
    "ensemble in threads": "sn.solve_ensemble(sn.ODE(leave, [1.0], SPAN), 'rk4', y0=[[1.0]] * 100, steps=9, workers=2)",
    "sweep in threads": "sn.sweep(sn.ODE(leave, [1.0], SPAN), 'rk4', {'y0[0]': np.ones(100)}, steps=9, workers=2)",
}


@pytest.mark.parametrize("case", EXITS)
def test_exit_in_a_users_function_exits(case):
    """With its status, without a traceback; an interrupt that the user's code raises is one."""
    program = f"""
        import sys
        import numpy as np
        import stepnet as sn

        SPAN = (0.0, 1.0)

        def decay(t, y):
            return -y

        def first(y):
            return y[0]

        def leave(t, y):
            if t > 0.3:
                print("leaving")
                sys.stdout.flush()
                if "{{raised}}" == "exit":
                    sys.exit(7)
                raise KeyboardInterrupt
            return -y

        try:
            {EXITS[case]}
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = child.run(program.replace("{raised}", "exit"))
    assert done.returncode == 7, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert "leaving" in done.stdout
    assert "interrupted" not in done.stdout
    done = child.run(program.replace("{raised}", "interrupt"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == ("leaving" if case == "check=False" else "interrupted")


def test_a_child_that_is_forked_while_a_thread_compiles_can_solve():
    program = """
        import os, signal, sys, threading, time, warnings
        import numpy as np
        import stepnet as sn

        warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of forks beside threads

        def make(c):
            def slopes(t, y):
                if y[0] > c:
                    return np.array([y[1], 0.0])
                return np.array([-c * y[0], y[1]])
            return slopes

        def solve(c):
            return sn.solve(sn.ODE(make(c), [1.0, 0.5], (0.0, 0.1)), "rk4", steps=2)

        assert solve(1.5).statistics.rung == "compiled"
        is_over = threading.Event()

        def compile_on():
            c = 2.0
            while not is_over.is_set():
                solve(c)
                c += 1.0

        thread = threading.Thread(target=compile_on)
        thread.start()
        codes = []
        for k in range(8):
            time.sleep(0.05 + 0.013 * k)
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # a child that hangs is ended by this
                found = solve(1000.0 + k)
                os._exit(0 if found.success and found.statistics.rung == "compiled" else 1)
            codes.append(os.waitpid(child, 0)[1])
        is_over.set()
        thread.join()
        print(codes)
    """
    assert child.succeed(program).strip() == str([0] * 8)
