"""The judge of `./dev chaos` finds what is broken, and nothing else."""

from tests.lab.chaos.history import Ended, History, broken_promises, read_journal
from tests.lab.chaos.schedule import OF_HOSTS, OF_SOME, Database, Trouble, schedule

HOSTS = ("lab-1", "lab-2", "lab-3")
DONE = "begin a main1 1\nend a main1 1\n"


def judged(journal: str, *known: Ended, accepted: tuple[str, ...] = ("a",), **left: list[str]) -> list[str]:
    return broken_promises(History(read_journal(journal), accepted, {ended.name: ended for ended in known}, left))


def test_a_session_that_ran_once_and_ended_is_as_promised():
    assert judged(DONE, Ended("a", "TERMINATED", "SUCCESS")) == []


def test_a_command_that_begins_twice_breaks_a_promise_unless_it_was_queued_again():
    again = DONE + "begin a main1 2\nend a main1 2\n"
    assert judged(again, Ended("a", "TERMINATED", "SUCCESS")) == [
        "the command of a:main1 began 2 times; at most 1 may be"
    ]
    assert judged(again, Ended("a", "TERMINATED", "SUCCESS", requeues=1, requeue=True)) == []
    assert judged(again, Ended("a", "TERMINATED", "SUCCESS", requeues=0, requeue=True)) != []


def test_accepted_sessions_must_be_known_and_end():
    assert judged("") == ["a was accepted and is forgotten"]
    assert judged("", Ended("a", "PREPARING", None)) == ["a is PREPARING for ever"]


def test_a_success_has_ended_everywhere_unless_a_user_ended_it():
    half = "begin a main1 1\nbegin a sub1 2\nend a main1 1\n"
    assert judged(half, Ended("a", "TERMINATED", "SUCCESS")) == ["a is a SUCCESS, but its command on sub1 never ended"]
    assert judged(half, Ended("a", "TERMINATED", "SUCCESS", by_user=True)) == []
    assert judged(half, Ended("a", "TERMINATED", "FAILURE")) == []


def test_leftovers_on_a_host_are_named():
    assert judged(DONE, Ended("a", "TERMINATED", "SUCCESS"), lab1=["net"]) == ["left on lab1: net"]


def test_a_line_that_a_loss_of_power_cut_off_is_left_out():
    assert judged(DONE + "begin a ma", Ended("a", "TERMINATED", "SUCCESS")) == []


def test_a_seed_is_a_schedule_whose_faults_heal_and_do_not_meet():
    for seed in range(300):
        chosen = schedule(seed, HOSTS)
        assert chosen == schedule(seed, HOSTS)
        submitted = {submit.name: submit.tick for submit in chosen.submits}
        assert all(end.tick >= submitted[end.name] for end in chosen.ends)
        for fault in chosen.faults:
            assert fault.tick < fault.until
            assert (fault.host == "") == (fault.trouble not in {*OF_HOSTS, Trouble.ENGINE_DISK_FULL})
            common = [fault for fault in chosen.faults if fault.trouble not in {*OF_SOME} - {Trouble.ENGINE_DISK_FULL}]
            for other in common:
                if fault in common and other is not fault and fault.tick <= other.until and other.tick <= fault.until:
                    assert fault.host != other.host
                    assert Trouble.ALL_CUT not in (fault.trouble, other.trouble)


def test_postgresql_is_killed_where_it_is_there_and_a_clock_is_wrong_by_some_seconds():
    for seed in range(60):
        chosen = schedule(seed, HOSTS)
        killed = [fault for fault in chosen.faults if fault.trouble is Trouble.POSTGRESQL_KILLED]
        assert bool(killed) == (chosen.database is Database.POSTGRESQL)
        assert all((fault.by_s != 0) == (fault.trouble is Trouble.CLOCK_WRONG) for fault in chosen.faults)


def test_the_first_three_seeds_have_both_databases_and_a_wrong_clock():
    first = [schedule(seed, HOSTS) for seed in (1, 2, 3)]
    assert {chosen.database for chosen in first} == set(Database)
    assert any(chosen.sets_clock for chosen in first)


def test_every_kind_of_fault_comes():
    assert {fault.trouble for seed in range(60) for fault in schedule(seed, HOSTS).faults} == set(Trouble)
