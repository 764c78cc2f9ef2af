"""The table of a GPU's turns (native/lease_table.c), function by function, at times that the test makes up."""

import ctypes
import subprocess
from ctypes import Structure, c_bool, c_int, c_uint, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

import pytest

from tests.native.lease_gpu import NATIVE
from tests.native.virtual_clock import MS, SECOND

TURN, SILENCE, NOBODY = 20 * MS, 100 * MS, 2**64 - 1
CLOSING = 256
NONE, SILENT, ALIVE = range(3)
NOW = 1000 * SECOND - 1000 * SECOND % 64  # grants count by 64 ns


class Account(Structure):
    _fields_ = [
        ("id", c_uint64),
        ("share_milli", c_uint32),
        ("limit_milli", c_uint16),
        ("best_effort", c_uint16),
        *(
            (name, c_uint64)
            for name in ("virtual_ns", "floor_ns", "used_ns", "waiting_since", "eligible_at", "heartbeat")
        ),
    ]


class Member(Structure):
    _fields_ = [("grant", c_uint64), ("heartbeat", c_uint64)]


class Table(Structure):
    _fields_ = [
        *((name, c_uint64) for name in ("layout", "clock_ns", "grant")),
        ("changes", c_uint32),
        ("unused", c_uint32),
        ("accounts", Account * 256),
        ("members", Member * 256),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    built = tmp_path_factory.mktemp("table") / "table.so"
    flags = ["-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{NATIVE}", "-include", NATIVE / "old_glibc.h"]
    subprocess.run(["gcc", *flags, NATIVE / "lease_table.c", "-o", built], check=True)
    loaded = ctypes.CDLL(str(built))
    account, at = c_uint, c_uint64
    for name, result, *arguments in (
        ("join", c_uint, c_uint64, at),
        ("wait", c_bool, account, at),
        ("contended", c_bool, account, at, c_void_p),
        ("class_waits", c_bool, c_bool, at),
        ("rest", c_uint64, at),
        ("running", c_uint64, c_uint64, at),
        ("enter", c_void_p, c_void_p, c_uint64, at),
        ("members", c_int, c_uint64, at),
        ("close", c_bool, c_uint64),
        ("hand_over", c_bool, c_uint64, at),
        ("charge", None, account, c_uint64),
        ("excuse", None, account, at, at),
        ("ring", None),
    ):
        function = getattr(loaded, f"lease_table_{name}")
        function.restype, function.argtypes = result, [c_void_p, *arguments]
    return loaded


@dataclass
class Call:
    """A call of a function by its name, on the table."""

    library: ctypes.CDLL
    table: Table

    def __call__(self, name: str, *arguments: Any) -> Any:
        return getattr(self.library, f"lease_table_{name}")(ctypes.byref(self.table), *arguments)


@pytest.fixture
def call(library):
    return Call(library, Table())


def grant(account, since=NOW, closing=False):
    return since >> 6 << 10 | (CLOSING if closing else 0) | account


def join(call, *shares, now=NOW, **fields):
    """Give containers of these shares the next accounts, and return their indexes."""
    joined = []
    for share in shares:
        index = call("join", 100 + len([1 for entry in call.table.accounts if entry.id]), now)
        entry = call.table.accounts[index]
        entry.share_milli = share
        for name, value in fields.items():
            setattr(entry, name, value)
        joined.append(index)
    return joined


def lowest(call, account, now=NOW):
    virtual_ns = c_uint64(7)
    return call("contended", account, now, ctypes.byref(virtual_ns)), virtual_ns.value


def test_containers_get_accounts_in_turn_and_keep_them(call):
    assert [call("join", number, NOW) for number in (11, 12, 13, 12, 11)] == [1, 2, 3, 2, 1]
    assert call.table.accounts[2].heartbeat == NOW


def test_a_newcomer_takes_over_the_stalest_account_and_nothing_of_what_it_had(call):
    for number in range(1, 256):
        call("join", number, NOW + number)
    held, stale, future = (call.table.accounts[index] for index in (5, 77, 99))
    call.table.grant = grant(5)
    held.heartbeat = 1
    stale.heartbeat = 2
    stale.used_ns, stale.eligible_at, stale.waiting_since, stale.virtual_ns = 3, 4, 5, 6
    now = NOW + SECOND
    assert call("join", 1000, now) == 77
    assert (stale.used_ns, stale.eligible_at, stale.waiting_since, stale.heartbeat) == (0, 0, 0, now)
    assert stale.virtual_ns == 6, "nothing is made better by going and coming"
    future.heartbeat = now + SILENCE + 1
    assert call("join", 1001, now) == 99, "a time from the future is none"
    future.heartbeat = now + SILENCE
    assert call("join", 1002, now) == 1


def test_who_waits_is_noted_once_and_kept_alive(call):
    (one,) = join(call, 500)
    assert call("wait", one, NOW + 1)
    assert not call("wait", one, NOW + 2)
    account = call.table.accounts[one]
    assert (account.waiting_since, account.heartbeat) == (NOW + 1, NOW + 2)


def test_an_idle_account_saves_up_two_turns_of_credit_and_no_more(call):
    first, second, third = join(call, 500, 250, 250)
    call.table.clock_ns = 10 * SECOND
    call("wait", first, NOW)
    assert call.table.accounts[first].floor_ns == 10 * SECOND - 2 * TURN * 2
    call.table.accounts[first].virtual_ns = 20 * SECOND
    call("wait", second, NOW)
    assert call.table.accounts[second].floor_ns == 20 * SECOND - 2 * TURN * 4, "the lowest of those that wait"
    call.table.grant = grant(first, NOW - 5 * MS)
    call.table.accounts[first].virtual_ns = 1 * SECOND
    call("wait", third, NOW)
    assert call.table.accounts[third].floor_ns == 1 * SECOND - 2 * TURN * 4, "or the one that runs"
    assert call.table.accounts[third].waiting_since == NOW


def test_credit_never_goes_below_nothing(call):
    (one,) = join(call, 500)
    call("wait", one, NOW)
    assert call.table.accounts[one].floor_ns == 0


def test_what_another_class_has_used_is_no_measure(call):
    guaranteed, rest = join(call, 500, 500)
    call.table.accounts[rest].best_effort = 1
    call.table.clock_ns = 10 * SECOND
    call.table.grant = grant(guaranteed)
    call("wait", rest, NOW)
    assert call.table.accounts[rest].floor_ns == 10 * SECOND - 2 * TURN * 2


def test_an_account_is_contended_by_those_of_its_class_that_wait_now(call):
    one, two, three = join(call, 500, 500, 500)
    assert lowest(call, one) == (False, NOBODY)
    call("wait", one, NOW)
    assert lowest(call, one) == (False, NOBODY), "by others"
    call.table.accounts[two].virtual_ns = 9
    call("wait", two, NOW)
    assert lowest(call, one) == (True, 9)
    call("wait", three, NOW)
    call.table.accounts[three].virtual_ns, call.table.accounts[three].floor_ns = 3, 5
    assert lowest(call, one) == (True, 5), "it starts at its floor"
    assert lowest(call, one, NOW + SILENCE) == (True, 5)
    assert lowest(call, one, NOW + SILENCE + 1) == (False, NOBODY), "they may be dead"
    call.table.accounts[three].eligible_at = NOW + 1
    assert lowest(call, one) == (True, 9)
    assert lowest(call, one, NOW + 1) == (True, 5)
    call.table.accounts[two].best_effort = 1
    assert lowest(call, one) == (False, NOBODY)
    assert lowest(call, two) == (False, NOBODY), "the first does not contest it, but goes before it"
    call.table.accounts[two].best_effort, call.table.accounts[one].best_effort = 0, 1
    assert lowest(call, one) == (False, NOBODY)


def test_the_search_ends_at_the_first_free_account(call):
    (one,) = join(call, 500)
    call("join", 2, NOW)
    beyond = call.table.accounts[4]
    beyond.id, beyond.waiting_since, beyond.heartbeat = 4, NOW, NOW
    assert lowest(call, one) == (False, NOBODY)


def test_a_class_waits_if_one_of_it_does(call):
    guaranteed, rest = join(call, 500, 500)
    call.table.accounts[rest].best_effort = 1
    assert [call("class_waits", kind, NOW) for kind in (False, True)] == [False, False]
    call("wait", rest, NOW)
    assert [call("class_waits", kind, NOW) for kind in (False, True)] == [False, True]
    call("wait", guaranteed, NOW)
    assert [call("class_waits", kind, NOW) for kind in (False, True)] == [True, True]
    assert [call("class_waits", kind, NOW + SILENCE + 1) for kind in (False, True)] == [False, False]


def test_the_gpu_rests_since_a_guaranteed_account_last_needed_it(call):
    assert call("rest", NOW) == NOBODY
    rest, first, second = join(call, 500, 500, 500)
    call.table.accounts[rest].best_effort = 1
    call.table.accounts[first].heartbeat = NOW - 30 * MS
    call.table.accounts[second].heartbeat = NOW - 20 * MS
    assert call("rest", NOW) == 20 * MS
    assert call("rest", NOW + MS) == 21 * MS
    call.table.accounts[second].heartbeat = NOW + SILENCE + 1
    assert call("rest", NOW) == 30 * MS, "a time from the future is none"
    call.table.accounts[first].heartbeat = NOW
    call.table.accounts[first].waiting_since = NOW - 7 * MS
    assert call("rest", NOW) == 0, "it waits, and could run"
    call.table.accounts[first].eligible_at = NOW
    assert call("rest", NOW) == 0
    call.table.accounts[first].eligible_at = NOW + 1
    assert call("rest", NOW) == 7 * MS, "it has reached its limit, and may not run"
    call.table.accounts[first].waiting_since = 0
    assert call("rest", NOW) == 0


def test_a_turn_costs_from_when_others_of_the_class_wait(call):
    one, two, three = join(call, 250, 500, 500)
    call.table.accounts[one].virtual_ns = 1000
    held = grant(one, NOW)
    call.table.grant = held
    now = NOW + 10 * MS
    assert call("running", held, now) == 1000
    call("wait", one, NOW + MS)
    assert call("running", held, now) == 1000, "it does not wait for itself"
    call("wait", two, NOW + 4 * MS)
    assert call("running", held, now) == 1000 + 4 * 6 * MS
    call("wait", three, NOW + 2 * MS)
    assert call("running", held, now) == 1000 + 4 * 8 * MS, "from the first on"
    call.table.accounts[three].waiting_since = NOW - SECOND
    assert call("running", held, now) == 1000 + 4 * 10 * MS, "no more than the turn"
    call.table.accounts[three].best_effort = 1
    assert call("running", held, now) == 1000 + 4 * 6 * MS, "best effort costs no guaranteed account anything"
    call.table.accounts[one].best_effort = 1
    assert call("running", held, now) == 1000 + 4 * 10 * MS, "and is charged for all others"
    call.table.accounts[one].share_milli = 0
    assert call("running", held, now) == 1000 + 1000 * 10 * MS


def test_processes_enter_a_turn_beside_each_other_and_are_seen_while_they_live(call):
    held = grant(1)
    call.table.grant = held
    start = ctypes.addressof(call.table.members)
    assert call("members", held, NOW) == NONE
    assert call("enter", None, held, NOW) == start
    assert call("enter", None, held, NOW) == start + 16
    assert call("enter", start + 254 * 16, held, NOW) == start + 254 * 16
    assert call("enter", start + 254 * 16, held, NOW) == start + 255 * 16
    assert call("enter", start + 254 * 16, held, NOW) == start + 2 * 16, "around the end"
    assert call("members", held | CLOSING, NOW + SILENCE) == ALIVE
    assert call("members", held, NOW + SILENCE + 1) == SILENT
    call.table.members[1].heartbeat = NOW + SILENCE
    assert call("members", held, NOW + SILENCE + 1) == ALIVE, "one of them is enough"
    call.table.grant = grant(1, NOW + MS)
    assert call("members", call.table.grant, NOW + MS) == NONE
    assert call("enter", None, held, NOW) is None, "that turn is over"


def test_more_processes_than_places_take_each_others(call):
    held = grant(1)
    call.table.grant = held
    start = ctypes.addressof(call.table.members)
    places = [call("enter", None, held, NOW) for _ in range(256)]
    assert places == [start + 16 * place for place in range(256)]
    assert call("enter", start + 16 * 9, held, NOW + 5) == start + 16 * 9
    assert call.table.members[9].heartbeat == NOW + 5


def test_a_turn_is_closed_once(call):
    call.table.grant = grant(1)
    assert not call("close", grant(2))
    assert call.table.changes == 0
    assert call("close", grant(1))
    assert (call.table.grant, call.table.changes) == (grant(1, closing=True), 1)
    assert not call("close", grant(1))


def test_an_idle_gpu_goes_to_the_account_that_waits_with_the_least_use(call):
    one, two, three = join(call, 500, 500, 500)
    assert not call("hand_over", 0, NOW), "nobody waits"
    for account, virtual_ns in ((one, 30), (two, 10), (three, 20)):
        call("wait", account, NOW)
        call.table.accounts[account].virtual_ns = virtual_ns
    changes = call.table.changes
    assert not call("hand_over", grant(one), NOW), "that turn is over already"
    assert call("hand_over", 0, NOW + MS)
    assert call.table.grant == grant(two, NOW + MS)
    assert call.table.changes == changes + 1
    assert call.table.accounts[two].waiting_since == 0
    assert [call.table.accounts[index].waiting_since for index in (one, three)] == [NOW, NOW]
    assert call.table.clock_ns == 10


def test_the_next_account_starts_at_its_floor(call):
    (one,) = join(call, 500)
    call.table.clock_ns = SECOND
    call("wait", one, NOW)
    call("hand_over", 0, NOW)
    assert call.table.accounts[one].virtual_ns == SECOND - 2 * 2 * TURN
    assert call.table.clock_ns == SECOND, "the clock goes forward only"


def test_a_turn_that_ends_is_charged_and_goes_to_another_or_to_none(call):
    one, two = join(call, 250, 500)
    held = grant(one, NOW, closing=True)
    call.table.grant = held
    call("wait", two, NOW + 5 * MS)
    assert call("hand_over", held, NOW + 20 * MS)
    assert call.table.grant == grant(two, NOW + 20 * MS)
    first = call.table.accounts[one]
    assert (first.virtual_ns, first.used_ns, first.eligible_at) == (4 * 15 * MS, 20 * MS, 0)
    assert call.table.accounts[two].used_ns == 0
    held = call.table.grant
    assert call("hand_over", held, NOW + 30 * MS)
    assert call.table.grant == 0
    assert (call.table.accounts[two].virtual_ns, call.table.accounts[two].used_ns) == (0, 10 * MS)


def test_the_holder_goes_on_if_it_still_has_had_least_with_this_turn(call):
    one, two = join(call, 500, 500)
    for extra, chosen in ((-1, two), (1, one)):
        held = grant(one, NOW)
        call.table.grant = held
        call.table.accounts[one].virtual_ns = 0
        for account in (one, two):
            call.table.accounts[account].waiting_since = call.table.accounts[account].heartbeat = NOW
            call.table.accounts[account].floor_ns = 0
        call.table.accounts[two].virtual_ns = 2 * 20 * MS + extra
        assert call("hand_over", held, NOW + 20 * MS)
        assert call.table.grant == grant(chosen, NOW + 20 * MS)


def test_guaranteed_accounts_go_before_those_of_best_effort_however_much_they_had(call):
    for order in ((0, 1), (1, 0)):
        call.table.grant = 0
        for index in range(256):
            call.table.accounts[index] = Account()
        accounts = join(call, 500, 500)
        for account, kind in zip(accounts, order, strict=True):
            call("wait", account, NOW)
            call.table.accounts[account].best_effort = kind
            call.table.accounts[account].virtual_ns = 0 if kind else SECOND
        call("hand_over", 0, NOW)
        assert call.table.grant == grant(accounts[order.index(0)], NOW)


def test_a_limit_says_when_the_next_turn_may_come(call):
    one, two = join(call, 250, 500)
    account = call.table.accounts[one]
    account.limit_milli = 500
    call("wait", one, NOW)
    call("hand_over", 0, NOW + 7 * MS)
    assert account.eligible_at == NOW - 2 * TURN, "a turn more than its part since it became active"
    call("wait", one, NOW + 8 * MS)
    held = call.table.grant
    assert call("hand_over", held, NOW + 27 * MS)
    assert account.eligible_at == NOW - 2 * TURN + 2 * 20 * MS
    assert call.table.grant == grant(one, NOW + 27 * MS)
    call("wait", one, NOW + 28 * MS)
    held = call.table.grant
    assert call("hand_over", held, NOW + 47 * MS)
    assert (account.eligible_at, call.table.grant) == (NOW + 40 * MS, grant(one, NOW + 47 * MS))
    account.eligible_at = NOW + 100 * MS
    held = grant(one, NOW + 47 * MS)
    call.table.grant = held
    assert call("hand_over", held, NOW + 48 * MS)
    assert call.table.grant == 0, "it waits, but may not have another turn yet"
    call("wait", two, NOW + 49 * MS)
    assert call("hand_over", 0, NOW + 50 * MS)
    assert call.table.accounts[two].eligible_at == 0, "it has no limit"


@pytest.mark.parametrize(("limit", "factor"), [(1, 4), (250, 4), (500, 2), (1000, 1)])
def test_a_limit_below_the_share_is_the_share(call, limit, factor):
    (one,) = join(call, 250, limit_milli=limit)
    call.table.accounts[one].eligible_at = NOW
    call.table.grant = grant(one, NOW)
    call("hand_over", call.table.grant, NOW + 10 * MS)
    assert call.table.accounts[one].eligible_at == NOW + factor * 10 * MS


def test_late_work_is_charged_and_excused_to_the_holder(call):
    one, two = join(call, 250, 500)
    call("charge", one, 5 * MS)
    assert (call.table.accounts[one].virtual_ns, call.table.accounts[one].used_ns) == (20 * MS, 5 * MS)
    call.table.grant = grant(two, NOW)
    call.table.accounts[two].virtual_ns = SECOND
    call("wait", one, NOW + 2 * MS)
    call("excuse", two, NOW, NOW + 10 * MS)
    assert call.table.accounts[two].virtual_ns == SECOND, "its own late work"
    call("excuse", one, NOW + 4 * MS, NOW + 10 * MS)
    assert call.table.accounts[two].virtual_ns == SECOND - 2 * 6 * MS
    call("excuse", one, NOW - 4 * MS, NOW + 10 * MS)
    assert call.table.accounts[two].virtual_ns == SECOND - 2 * 6 * MS - 2 * 8 * MS, "no more than it was charged"
    call.table.accounts[two].virtual_ns = 3
    call("excuse", one, NOW, NOW + 10 * MS)
    assert call.table.accounts[two].virtual_ns == 0
    call.table.grant = 0
    call.table.accounts[0].virtual_ns = 9 * SECOND
    call("excuse", one, NOW, NOW + 10 * MS)
    assert call.table.accounts[0].virtual_ns == 9 * SECOND, "nobody holds the GPU"


def test_a_change_is_counted(call):
    call("ring")
    call("ring")
    assert call.table.changes == 2
