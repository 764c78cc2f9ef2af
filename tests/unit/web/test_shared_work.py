"""Work that is requested while it is done is done once more, for all who came meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from muster.web.shared_work import SharedWork
from tests.waiting import eventually


class Slow:
    """Work that returns how often it was begun, once it is let go."""

    def __init__(self):
        self.begun = 0
        self.go = threading.Semaphore(0)

    def __call__(self):
        self.begun += 1
        number = self.begun
        self.go.acquire()
        return number


@pytest.fixture
def pool():
    with ThreadPoolExecutor(20) as made:
        yield made


class Counted(SharedWork):
    """Shared work that counts who has come."""

    joined = 0

    def _joined(self, key):
        self.joined += 1
        return super()._joined(key)


def test_those_who_come_while_it_is_done_share_what_is_made_after_they_came(pool):
    shared, work = Counted(), Slow()
    first = pool.submit(shared.result, "a", work)
    eventually(lambda: work.begun == 1)
    later = [pool.submit(shared.result, "a", work) for _ in range(10)]
    eventually(lambda: shared.joined == 11)
    assert work.begun == 1
    work.go.release(2)
    assert first.result() == 1
    assert [one.result() for one in later] == [2] * 10
    assert work.begun == 2


def test_other_keys_do_not_wait(pool):
    shared, work = SharedWork(), Slow()
    first = pool.submit(shared.result, "a", work)
    eventually(lambda: work.begun == 1)
    assert shared.result("b", lambda: "at once") == "at once"
    work.go.release()
    first.result()


def test_an_error_is_of_those_who_shared_it_and_of_no_later_ones(pool):
    shared, go, begun = Counted(), threading.Event(), threading.Event()

    def first():
        begun.set()
        go.wait()

    def fails():
        raise ValueError("no")

    running = pool.submit(shared.result, "a", first)
    begun.wait()
    later = [pool.submit(shared.result, "a", fails) for _ in range(3)]
    eventually(lambda: shared.joined == 4)
    go.set()
    running.result()
    for one in later:
        with pytest.raises(ValueError, match="no"):
            one.result()
    assert shared.result("a", lambda: "done") == "done"
    assert not shared._turns


def test_each_later_call_does_it_anew():
    shared, work = SharedWork(), Slow()
    work.go.release(2)
    assert [shared.result("a", work) for _ in range(2)] == [1, 2]
