"""`muster limit` and `muster share-weight`: set over the settings file, each shown with where it comes from."""

import json

import pytest

from tests.command_line import muster, write_settings


@pytest.fixture(autouse=True)
def _settings(state_dir):
    limits = {"users": {"ada": {"running": {"gpu": 4}}}}
    write_settings(state_dir.parent, {"state_dir": str(state_dir), "limits": limits, "shares": {"ada": 2}})


def rows(*command: str) -> list[list[str]]:
    return [line.split("  ") for line in muster(*command).out.splitlines()[1:]]


def cells(*command: str) -> list[list[str]]:
    return [[cell.strip() for cell in row if cell.strip()] for row in rows(*command)]


DEFAULT = ["user", "*", "any", "20000 sessions, 200000 containers", "default"]


def test_a_limit_is_set_listed_and_unset(state_dir):
    assert cells("limit", "ls") == [DEFAULT, ["user", "ada", "4 GPU", "any", "settings file"]]
    answer = muster("limit", "set", "user", "ada", "running.gpu=16", "running.mem=512G", "pending.sessions=3")
    assert (answer.code, answer.out) == (0, "user ada: running 512 GiB memory, 16 GPU; waiting 3 sessions\n")
    assert (
        muster("limit", "set", "resource_group", "gpu", "--none").out
        == "resource group gpu: running any; waiting any\n"
    )
    assert cells("limit", "ls") == [
        DEFAULT,
        ["user", "ada", "512 GiB memory, 16 GPU", "3 sessions", "set by ada"],
        ["resource group", "gpu", "any", "any", "set by ada"],
    ]
    assert "limit of user ada, limit of resource group gpu" in muster("doctor").out
    assert muster("limit", "unset", "user", "ada").out == "user ada: running 4 GPU; waiting any\n"
    assert muster("limit", "unset", "resource_group", "gpu", "--json").json == {"limit": None}
    assert muster("limit", "unset", "user", "ada").code == 2
    records = [json.loads(line) for line in (state_dir / "audit.log").read_text().splitlines()]
    first = records[0]
    assert (first["path"], first["arguments"], first["status"]) == (
        "muster limit set",
        {"kind": "user", "name": "ada", "amounts": ["running.gpu=16", "running.mem=512G", "pending.sessions=3"]},
        0,
    )
    assert [one["path"] for one in records[1:]] == ["muster limit set", *["muster limit unset"] * 3]


def test_a_limit_holds_for_the_next_submit():
    muster("limit", "set", "user", "ada", "pending.sessions=1")
    assert muster("submit", "--", "true").code == 0
    refused = muster("submit", "--", "true")
    assert refused.code == 2
    assert "user ada may have 1 session waiting, has 1 session" in refused.err
    muster("limit", "unset", "user", "ada")
    assert muster("submit", "--", "true").code == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "AMOUNT: say what is limited"),
        (("running.gpu=1", "--none"), "AMOUNT: say what is limited"),
        (("gpu=1",), "AMOUNT: 'gpu=1' is no amount; write running.gpu=8"),
        (("started.gpu=1",), "AMOUNT: 'started.gpu=1' is no amount"),
        (("running.gpu=1", "running.gpu=2"), "AMOUNT: running.gpu is given twice"),
        (("running.gpus=1",), "running"),
        (("running.mem=much",), "running.mem: "),
        (("running.gpu=-1",), "running.gpu: '-1' is too small"),
    ],
)
def test_bad_amounts_change_nothing(arguments, error):
    before = muster("limit", "ls", "--json").json
    answer = muster("limit", "set", "user", "ada", *arguments)
    assert answer.code == 2
    assert error in answer.err
    assert muster("limit", "ls", "--json").json == before


def test_a_share_weight_is_set_listed_and_unset(state_dir):
    assert cells("share-weight", "ls") == [["ada", "2", "settings file"]]
    assert muster("share-weight", "set", "bob", "0.5").out == "user bob: share weight 0.5\n"
    assert muster("share-weight", "set", "ada", "3", "--json").json["replaces"] == 2
    assert cells("share-weight", "ls") == [["ada", "3", "set by ada"], ["bob", "0.5", "set by ada"]]
    assert muster("share-weight", "unset", "ada").out == "user ada: share weight 2\n"
    assert muster("share-weight", "unset", "bob").out == "user bob: share weight 1\n"
    for wrong in ("0", "much", "inf"):
        assert "is no share weight" in muster("share-weight", "set", "bob", wrong).err
    assert (
        '"path": "muster share-weight set", "arguments": {"user": "bob", "weight": "0.5"}'
        in (state_dir / "audit.log").read_text()
    )
