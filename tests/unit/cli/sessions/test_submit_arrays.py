"""`muster submit` of arrays, and of sessions that start after others."""

import pytest

from tests.command_line import muster, nothing_queued, submitted
from tests.strategies.agents import make_agent


def test_an_array_queues_a_session_for_each_index():
    sessions = muster("submit", "--name", "train", "--array", "1,5-9:2%2", "--json", "--", "true").json
    assert [session["name"] for session in sessions] == ["train-1", "train-5", "train-7", "train-9"]
    assert [session["array_index"] for session in sessions] == [1, 5, 7, 9]
    assert {session["array_id"] for session in sessions} == {sessions[0]["id"]}
    assert {(session["spec"]["name"], session["spec"]["array"]) for session in sessions} == {("train", "1,5-9:2%2")}
    assert muster("show", "train-7", "--json").json["array_index"] == 7


def test_an_array_is_announced_in_one_line_and_with_quiet_by_its_ids():
    assert muster("submit", "--name", "a", "--array", "0-9,12").out == "Submitted a-[0-9,12]: 11 sessions\n"
    ids = muster("submit", "--name", "b", "--array", "0-2", "-q").out.split()
    assert [muster("show", key, "--json").json["name"] for key in ids] == ["b-0", "b-1", "b-2"]
    nameless = muster("submit", "--array", "0-1", "--json").json
    assert [session["name"] for session in nameless] == [f"session-{nameless[0]['id'][:8]}-{n}" for n in range(2)]


def test_an_array_is_queued_whole_or_not_at_all():
    submitted("--name", "train-2")
    answer = muster("submit", "--name", "train", "--array", "0-3")
    assert (answer.code, "already called train-2;" in answer.err) == (2, True)
    assert [session["name"] for session in muster("ls", "--json").json] == ["train-2"]


def test_the_name_of_an_array_is_taken_while_one_of_its_sessions_is_active():
    muster("submit", "--name", "train", "--array", "0-1")
    for arguments in (["--name", "train"], ["--name", "train", "--array", "5-6"]):
        answer = muster("submit", *arguments)
        assert (answer.code, "already called train;" in answer.err) == (2, True)
    muster("cancel", "train")
    assert muster("submit", "--name", "train", "--array", "0-1").code == 0


def test_an_array_that_never_fits_is_reported_once(store):
    store.agents.save([make_agent(cpus=4)])
    answer = muster("submit", "--cpu", "5", "--name", "giant", "--array", "0-5")
    assert (answer.code, len(answer.errors)) == (0, 1)
    assert answer.errors[0].startswith("muster: giant-[0-5] can never start: it asks for more")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--array", "0-9999", "--cluster-size", "11"], "array: 10000 sessions of 11 containers are too many at once"),
        (["--array", "0-3", "--count", "2"], "count: an array is given as well; give one of them"),
        (["--array", "0-3", "--name", "n" * 62], "is longer than 63 characters; choose a shorter one"),
    ],
)
def test_an_array_that_is_too_much_is_refused(arguments, said):
    answer = muster("submit", *arguments)
    assert (answer.code, len(answer.errors)) == (2, 1)
    assert said in answer.err
    assert nothing_queued()


def test_a_dependency_is_stored_by_id_for_any_way_of_naming_it():
    prep, other = submitted("--name", "prep"), submitted("--name", "other")
    array = muster("submit", "--name", "parts", "--array", "0-2", "--json").json
    parts = [session["id"] for session in array]
    spec = submitted(
        *("--after", f"prep,{other['id']}", "--after", other["id"][:8]),
        *("--after-ok", "parts", "--after-any", "parts-1"),
    )["spec"]
    assert spec["after"] == [prep["id"], other["id"]]
    assert (sorted(spec["after_ok"]), spec["after_any"]) == (sorted(parts), [parts[1]])


def test_a_dependency_is_the_session_that_has_the_name_when_it_is_submitted():
    first = submitted("--name", "prep")
    muster("cancel", "prep")
    assert submitted("--after-any", "prep")["spec"]["after_any"] == [first["id"]]
    second = submitted("--name", "prep")
    assert submitted("--after-any", "prep")["spec"]["after_any"] == [second["id"]]
    assert submitted("--after-any", first["id"])["spec"]["after_any"] == [first["id"]]


def test_a_session_may_start_after_an_ended_one_of_its_own_name_and_not_after_itself():
    answer = muster("submit", "--name", "nightly", "--after-ok", "nightly")
    assert answer.errors == ["muster: after_ok: there is no session 'nightly'; see `muster ls --all`"]
    first = submitted("--name", "nightly")
    muster("cancel", "nightly")
    assert submitted("--name", "nightly", "--after-ok", "nightly")["spec"]["after_ok"] == [first["id"]]


def test_every_dependency_that_does_not_exist_is_named_with_its_field():
    answer = muster("submit", "--after", "a,b", "--after-any", "c")
    assert answer.code == 2
    assert answer.errors == [
        "muster: after: there is no session 'a'; see `muster ls --all`",
        "muster: after: there is no session 'b'; see `muster ls --all`",
        "muster: after_any: there is no session 'c'; see `muster ls --all`",
    ]
    assert nothing_queued()
