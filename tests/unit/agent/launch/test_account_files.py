"""Accounts and ssh configuration merged into what an image has."""

import io
import tarfile

from muster.core.spec.mounts import HOME
from tests.modules.agent_code import account_files

IN_TAR = HOME.removeprefix("/")

USER = {"name": "work", "uid": 1000, "gid": 1000, "home": HOME}
DIRECTORY = {"mode": (1 << 31) | 0o750, "linkTarget": ""}
LINK = {"mode": (1 << 27) | 0o777, "linkTarget": f"/var{HOME}"}
FILE = {"mode": 0o644, "linkTarget": ""}
USERS_SSH = [f"{HOME}/.ssh{name}" for name in ("", "/config", "/id_ed25519", "/id_ed25519.pub")]
ABSENT = ("/bin/bash", "/etc/ssh", "/etc/profile.d", HOME, *USERS_SSH)
PATHS = {"/bin/sh": {}, **dict.fromkeys(ABSENT)}
OURS = "[main1]:2200 ssh-ed25519 NEW\nmain1 ssh-ed25519 NEW\n"
ENVIRONMENT = {"SHELL": "/bin/sh", "PATH": "/my bin:/rt/bin"}


def _facts(**paths):
    return account_files.ImageFacts(
        "root:x:0:0::/root:/bin/sh\n", "root:x:0:\n", "Host *\n", "", {**PATHS, **paths}, {}
    )


def _entries(facts, mounts=(), links=(), tmpfs=()):
    packed = account_files.account_tar(facts, USER, ENVIRONMENT, OURS, list(mounts), list(links), list(tmpfs))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {member.name: (member, None if member.issym() else archive.extractfile(member)) for member in archive}


def test_the_users_account_comes_first_and_replaces_its_namesake():
    image = "root:x:0:0:root:/root:/bin/sh\nwork:x:7:7::/old:/bin/sh\nubuntu:x:1000:1000::/home/ubuntu:/bin/bash"
    assert account_files.merged_passwd(image, USER, "/bin/bash").splitlines() == [
        "work:x:1000:1000::/home/work:/bin/bash",
        "root:x:0:0:root:/root:/bin/sh",
        "ubuntu:x:1000:1000::/home/ubuntu:/bin/bash",
    ]


def test_an_image_without_accounts_gets_one():
    assert account_files.merged_passwd("", USER, "/bin/sh") == "work:x:1000:1000::/home/work:/bin/sh\n"
    assert account_files.merged_group("", USER) == "work:x:1000:\ntty:x:5:\n"


def test_a_group_with_the_users_gid_stays_as_the_image_has_it():
    assert account_files.merged_group("tty:x:5:\nubuntu:x:1000:\n", USER) == "ubuntu:x:1000:\ntty:x:5:\n"


def test_terminals_belong_to_the_group_that_docker_gives_them():
    assert account_files.merged_group("tty:x:99:\nwork:x:7:\n", USER) == "work:x:1000:\ntty:x:5:\n"


def test_merging_twice_is_merging_once():
    passwd = account_files.merged_passwd("root:x:0:0::/root:/bin/sh\n", USER, "/bin/sh")
    group = account_files.merged_group("root:x:0:\n", USER)
    config = account_files.merged_ssh_config("Host *\n")
    assert account_files.merged_passwd(passwd, USER, "/bin/sh") == passwd
    assert account_files.merged_group(group, USER) == group
    assert account_files.merged_ssh_config(config) == config


def test_the_sessions_ssh_configuration_is_read_before_the_images():
    assert account_files.merged_ssh_config("Host *\n") == "Include /run/muster/ssh_config\nHost *\n"


def test_a_file_that_is_no_text_is_kept_byte_for_byte():
    facts = _facts()._replace(passwd=b"caf\xe9:x:9:9::/:/bin/sh\n".decode("utf-8", "surrogateescape"))
    assert b"caf\xe9" in _entries(facts)["etc/passwd"][1].read()


def test_a_home_that_the_image_lacks_is_made():
    home, _ = _entries(_facts())[IN_TAR]
    assert (home.uid, home.gid, home.mode, home.isdir()) == (1000, 1000, 0o755, True)


def test_a_home_that_the_image_has_keeps_its_mode_and_is_given_to_the_user():
    home, _ = _entries(_facts(**{HOME: DIRECTORY}))[IN_TAR]
    assert (home.uid, home.mode) == (1000, 0o750)


def test_a_home_that_is_a_link_is_followed():
    entries = _entries(_facts(**{HOME: LINK}))
    assert f"var{HOME}" in entries
    assert IN_TAR not in entries


def test_a_home_under_a_mount_is_left_alone():
    for target in (HOME, "/home"):
        assert IN_TAR not in _entries(_facts(), [target])
    assert IN_TAR in _entries(_facts(), ["/home/worker"])


def _users_ssh(entries, home=IN_TAR):
    """Return what lies in ~/.ssh: the text of a file, the target of a link, and None for the directory itself."""
    start = f"{home}/.ssh"
    return {
        name[len(start) :].lstrip("/"): member.linkname or (content and content.read().decode())
        for name, (member, content) in entries.items()
        if name.startswith(start)
    }


NEW_SSH = {
    "": None,
    "config": "Include /run/muster/ssh_config\n",
    "id_ed25519": "/run/muster/id_ed25519",
    "id_ed25519.pub": "/run/muster/id_ed25519.pub",
    "known_hosts": OURS,
}


def test_a_home_without_ssh_files_gets_them_and_the_key_stays_in_memory():
    entries = _entries(_facts())
    assert _users_ssh(entries) == NEW_SSH
    directory, known_hosts = entries[f"{IN_TAR}/.ssh"][0], entries[f"{IN_TAR}/.ssh/known_hosts"][0]
    assert (directory.mode, directory.uid, known_hosts.uid, known_hosts.gid) == (0o700, 1000, 1000, 1000)
    assert _users_ssh(_entries(_facts(**{HOME: LINK})), f"var{HOME}") == NEW_SSH


def test_ssh_files_of_the_image_stay_and_its_known_hosts_lose_those_of_an_earlier_session():
    theirs = {HOME: DIRECTORY, f"{HOME}/.ssh": DIRECTORY, f"{HOME}/.ssh/config": FILE}
    facts = _facts(**theirs, **{f"{HOME}/.ssh/id_ed25519": FILE})
    facts = facts._replace(known_hosts="git.example ssh-rsa X\nmain1 ssh-ed25519 OLD\n")
    assert _users_ssh(_entries(facts)) == {"known_hosts": OURS + "git.example ssh-rsa X\n"}
    assert _users_ssh(_entries(_facts(**{**theirs, f"{HOME}/.ssh": LINK}))) == {}


def test_ssh_files_are_put_into_no_folder_that_is_mounted():
    for target in (HOME, "/home", f"{HOME}/.ssh", f"{HOME}/.ssh/keys"):
        assert _users_ssh(_entries(_facts(), [target])) == {}
    assert _users_ssh(_entries(_facts(), [f"{HOME}/.sshd", f"{HOME}/data"])) == NEW_SSH


def test_directories_that_exist_are_not_named():
    entries = _entries(_facts(**{"/etc/ssh": DIRECTORY, "/etc/profile.d": DIRECTORY}))
    assert "etc/ssh" not in entries
    assert entries["etc/profile.d/muster.sh"][1].read() == b"PATH='/my bin:/rt/bin'\nexport PATH\n"
    assert "etc/ssh" in _entries(_facts())


def test_a_link_where_a_bind_shall_lie_becomes_a_file():
    library, content = _entries(_facts(), links=["/usr/lib64/libcuda.so.1"])["usr/lib64/libcuda.so.1"]
    assert (library.isfile(), library.mode, content.read()) == (True, 0o644, b"")


def test_the_login_shell_is_the_best_that_there_is():
    assert _facts(**{"/bin/bash": {"name": "bash"}, "/bin/sh": {"name": "sh"}}).login_shell("/rt") == "/bin/bash"
    assert _facts(**{"/bin/sh": {"name": "sh"}}).login_shell("/rt") == "/bin/sh"
    assert _facts(**{"/bin/sh": None}).login_shell("/rt") == "/rt/bin/sh"


def test_a_directory_for_a_tmpfs_is_the_users():
    directory, _ = _entries(_facts(), tmpfs=["/run/muster-apps"])["run/muster-apps"]
    assert (directory.isdir(), directory.mode, directory.uid, directory.gid) == (True, 0o700, 1000, 1000)
