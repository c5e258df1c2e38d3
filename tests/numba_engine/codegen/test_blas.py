"""BLAS of any library runs on one thread while layers run, and on the previous number of threads afterwards."""

from __future__ import annotations

from threading import Barrier, Event, Thread

from threadpoolctl import ThreadpoolController

from stepnet.engines.numba_engine.codegen.blas import SINGLE_THREAD, SingleThread, describe_blas


def threads() -> list[int]:
    return [library.get_num_threads() for library in SINGLE_THREAD.libraries]


def test_the_blas_of_scipy_is_found():
    assert SINGLE_THREAD.libraries
    assert all(library.user_api == "blas" for library in SINGLE_THREAD.libraries)
    assert SINGLE_THREAD.libraries[0].internal_api in describe_blas()


def test_one_thread_inside_and_as_many_as_before_outside():
    before = threads()
    try:
        for library in SINGLE_THREAD.libraries:
            library.set_num_threads(2)
        outside = threads()
        with SINGLE_THREAD:
            assert set(threads()) == {1}
            with SINGLE_THREAD:
                assert set(threads()) == {1}
            assert set(threads()) == {1}
        assert threads() == outside
    finally:
        for library, count in zip(SINGLE_THREAD.libraries, before, strict=True):
            library.set_num_threads(count)


def test_the_last_thread_to_leave_restores_what_the_first_one_found():
    before = threads()
    entered, left = Barrier(2), Event()

    def stay():
        with SINGLE_THREAD:
            entered.wait()
            left.wait()

    try:
        for library in SINGLE_THREAD.libraries:
            library.set_num_threads(2)
        outside = threads()
        with SINGLE_THREAD:
            other = Thread(target=stay)
            other.start()
            entered.wait()
        assert set(threads()) == {1}
        left.set()
        other.join()
        assert threads() == outside
    finally:
        for library, count in zip(SINGLE_THREAD.libraries, before, strict=True):
            library.set_num_threads(count)


def test_a_blas_that_nobody_knows_is_left_alone(monkeypatch):
    monkeypatch.setattr(ThreadpoolController, "select", lambda self, **_: type("", (), {"lib_controllers": []}))
    unknown = SingleThread()
    with unknown:
        assert unknown.libraries == []
