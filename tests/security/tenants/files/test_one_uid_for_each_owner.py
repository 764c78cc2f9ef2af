"""Tenants share no uid where the site gives each owner one: kernels do not, and folders do not."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.launch.manifest import LaunchPolicy
from muster.core.model.session import SessionState
from muster.core.values.errors import BadInputError, SettingsError
from muster.service.identity import owner_uids
from muster.service.identity.owner_uids import check_uid, with_uids
from muster.service.queue.worker import QueueWorker
from muster.settings import load_settings
from tests.simulated.control_node import ControlNode, an_agent

RANGE = range(100_000, 100_002)
OWNERS = ("ada", "bob")
UNIX = LaunchPolicy(owner_uid_range=RANGE, unix_owners=True)


class NodeWithUids(ControlNode):
    """A control node whose site gives each owner a uid."""

    def open(self) -> None:
        super().open()
        policy = replace(self.shell.launch_policy, owner_uid_range=RANGE)
        self.shell = replace(self.shell, launch_policy=policy)
        self.worker = QueueWorker(self.shell, self.inbox.put)


@pytest.fixture
def node(tmp_path: Path, empty_database: Path) -> ControlNode:
    shutil.copy(empty_database, tmp_path / "muster.db")
    return NodeWithUids(tmp_path, an_agent())


def uids(node: ControlNode) -> dict[str, int]:
    policy = with_uids(node.shell.launch_policy, node.store, OWNERS)
    return {owner: policy.uid_of(owner) for owner in OWNERS}


def test_two_owners_run_as_two_and_again_as_the_same(node: ControlNode) -> None:
    first = uids(node)
    assert set(first.values()) == set(RANGE)
    node.restart()
    assert uids(node) == first


def test_a_session_of_an_owner_without_a_uid_does_not_start_under_another(node: ControlNode) -> None:
    uids(node)
    late, early = node.submit(owner="eve"), node.submit(owner="ada")
    node.run()
    assert (node.state(late), node.state(early)) == (SessionState.ERROR, SessionState.RUNNING)
    with pytest.raises(BadInputError, match="no uid is left for eve in owner_uid_range"):
        check_uid(node.shell.launch_policy, node.store, "eve")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("owner_uid_range: 100-5000", "holds work_uid, 1000"),
        ("owner_uid_range: 200000-100000", "is no range of uids"),
        ("owner_uid_range: 0-10", "is no range of uids"),
        ("owner_uid_range: 5000000000-6000000000", "is no range of uids"),
        ("owner_uid_range: many", "owner_uid_range"),
        ("owner_uids: {ada: 0}", "owner_uids"),
        ("owner_uid: unix", "needs owner_uid_range"),
        ("{owner_uid: mine, owner_uid_range: 100000-165535}", "owner_uid"),
    ],
)
def test_settings_that_would_give_one_uid_twice_or_roots_are_refused(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "muster.yml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=fault):
        load_settings(tmp_path / "muster.yml")


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """Return the name service's users with their uids and gids, which a test may change."""
    known = {"ada": (1234, 100), "root": (0, 0), "postgres": (112, 112), "taken": (RANGE[0], 100), "wheel": (1235, 0)}
    monkeypatch.setattr(owner_uids, "ids_of", known.get)

    def name_of(uid: int) -> str | None:
        return next((name for name, (theirs, _) in known.items() if theirs == uid), None)

    monkeypatch.setattr(owner_uids, "name_of", name_of)
    return known


def unix_uids(node: ControlNode, *owners: str) -> dict[str, tuple[int, int]]:
    policy = with_uids(replace(UNIX, owner_uids={"named": 7}), node.store, owners)
    return {owner: (policy.uid_of(owner), policy.gid_of(owner)) for owner in owners}


@pytest.mark.usefixtures("accounts")
def test_a_unix_user_runs_as_themself(node: ControlNode) -> None:
    assert unix_uids(node, "ada", "named") == {"ada": (1234, 100), "named": (7, 7)}


@pytest.mark.usefixtures("accounts")
@pytest.mark.parametrize("owner", ["root", "postgres", "taken", "wheel", "nobody-knows"])
def test_nobody_runs_as_root_a_program_or_with_a_uid_that_another_may_get(node: ControlNode, owner: str) -> None:
    ((uid, gid),) = unix_uids(node, owner).values()
    assert uid in RANGE
    assert gid == uid


def test_a_unix_user_whom_nobody_knows_for_a_moment_is_given_no_other_uid(node: ControlNode, accounts: Any) -> None:
    assert unix_uids(node, "ada") == {"ada": (1234, 100)}
    ada = accounts.pop("ada")
    with pytest.raises(KeyError):
        unix_uids(node, "ada")
    with pytest.raises(BadInputError, match="ada was a Unix user, whom the control node does not know"):
        check_uid(UNIX, node.store, "ada")
    accounts["ada"] = ada
    check_uid(UNIX, node.store, "ada")
    assert unix_uids(node, "ada") == {"ada": (1234, 100)}


def test_a_uid_that_is_another_unix_users_now_is_theirs(node: ControlNode, accounts: Any) -> None:
    unix_uids(node, "ada")
    accounts["bob"] = accounts.pop("ada")
    assert unix_uids(node, "bob") == {"bob": (1234, 100)}
    assert unix_uids(node, "ada")["ada"][0] in RANGE


def test_of_two_names_for_one_uid_the_first_alone_has_it(node: ControlNode, accounts: Any) -> None:
    """As where the name service takes capital letters for small ones, and a token is for Ada."""
    accounts["Ada"] = accounts["ada"]
    for _ in range(2):
        found = unix_uids(node, "Ada", "ada")
        assert found["ada"] == (1234, 100)
        assert found["Ada"][0] in RANGE
    check_uid(UNIX, node.store, "Ada")
