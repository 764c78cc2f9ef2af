"""Tenants share no uid where the site gives each owner one: kernels do not, and folders do not."""

from dataclasses import replace
from pathlib import Path

import pytest

from muster.core.model.session import SessionState
from muster.core.values.errors import BadInputError, SettingsError
from muster.service.identity.owner_uids import check_uid, with_uids
from muster.service.queue.worker import QueueWorker
from muster.settings import load_settings
from tests.simulated_control_node import ControlNode, an_agent

RANGE = range(100_000, 100_002)
OWNERS = ("ada", "bob")


class NodeWithUids(ControlNode):
    """A control node whose site gives each owner a uid."""

    def open(self) -> None:
        super().open()
        policy = replace(self.shell.launch_policy, owner_uid_range=RANGE)
        self.shell = replace(self.shell, launch_policy=policy)
        self.worker = QueueWorker(self.shell, self.inbox.put)


@pytest.fixture
def node(tmp_path: Path) -> ControlNode:
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
    ],
)
def test_settings_that_would_give_one_uid_twice_or_roots_are_refused(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "muster.yml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=fault):
        load_settings(tmp_path / "muster.yml")
