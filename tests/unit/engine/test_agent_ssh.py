"""Remote commands mean the same to each login shell: what one of them would change is refused."""

import subprocess

import pytest

from muster.engine.agent_ssh import by_sh


def test_the_script_and_its_arguments_come_as_they_are():
    command = by_sh('printf "%s|" "$@"; exit 3', "it's", "two words", "$HOME", "")
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.stdout, done.returncode) == ("it's|two words|$HOME||", 3)


@pytest.mark.parametrize("script", ["true\ntrue", "! true", r"printf '\n'"])
def test_what_a_login_shell_would_change_is_refused(script):
    with pytest.raises(ValueError, match="not every login shell"):
        by_sh(script)
    with pytest.raises(ValueError, match="not every login shell"):
        by_sh("true", script)
