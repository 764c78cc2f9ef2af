"""`muster playbook`: which there are. An installed one runs in tests/e2e/operations/test_installation.py."""

from tests.command_line import muster


def test_the_packaged_playbooks_are_listed_with_what_they_do():
    lines = dict(line.split(maxsplit=1) for line in muster("playbook").out.splitlines())
    assert lines["site.yml"] == "Turns the inventory's hosts into agents and the control node"
    assert lines["launch.yml"] == "Launch a cluster session"


def test_one_that_there_is_not_is_one_line():
    done = muster("playbook", "nosuch", "-i", "inventory.yml")
    assert done.code == 2
    (line,) = done.errors
    assert line.startswith("muster: PLAYBOOK: there is no 'nosuch'; name one of converge.yml, ")
    assert muster("playbook", "./nosuch.yml").code == 2
