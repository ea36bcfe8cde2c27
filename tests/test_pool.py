"""A pool of threads has ended its work when its block ends."""

from __future__ import annotations

import threading

import pytest

from lockkit.runtime.pool import Pool


def test_ctrl_c_at_the_start_of_a_thread_leaves_no_work_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts, released, done = threading.Thread.start, threading.Event(), list[int]()

    def interrupted(thread: threading.Thread) -> None:
        starts(thread)
        monkeypatch.undo()
        threading.Timer(0.2, released.set).start()
        raise KeyboardInterrupt

    def work(number: int) -> None:
        released.wait(30)
        done.append(number)

    with pytest.raises(KeyboardInterrupt), Pool(2) as pool:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        list(pool.map(work, range(2)))
    assert done == [0]


def test_a_pool_returns_results_in_order_and_raises_what_its_work_raised() -> None:
    with Pool(3) as pool:
        assert list(pool.map(abs, range(-9, 0))) == [*range(9, 0, -1)]
    with pytest.raises(ZeroDivisionError), Pool(3) as pool:
        list(pool.map(lambda each: 1 // each, range(3)))
