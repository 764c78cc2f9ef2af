"""Files that were on a host before Muster came: what a role adds to them shows nobody what they hold."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running.forked_ansible import LOCAL, ROOT, ansible

TEXT = "s3cret\n# BEGIN MUSTER FOLDERS\nnas:/x /y nfs\n# END MUSTER FOLDERS\nmuster-firewall apply\n"
READ = {"rc": 0, "stdout": '{"proxies": {"https-proxy": "http://ada:s3cret@proxy"}}'}
FACTS = {
    "docker_engine_daemon_json": READ,
    "docker_engine_options_wanted": {"log-driver": "json-file"},
    "docker_engine_systemd": {"stat": {"exists": False}},
    "docker_engine_former": "",
    "docker_engine_open_files": {"stdout": "1024"},
    "folders_fstab": {"rc": 0},
    "folders_line": "nas:/export /srv/muster/folders nfs defaults,nofail 0 0",
    "session_firewall_program": "/usr/local/sbin/muster-firewall",
    "session_firewall_systemd": {"stat": {"exists": False}},
}


def tasks_of(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for task in found:
        yield task
        for part in ("block", "rescue"):
            yield from tasks_of(task.get(part, []))


@pytest.mark.parametrize(
    ("file", "name", "path"),
    [
        ("docker_engine/tasks/configure", "Write daemon.json", "dest"),
        ("docker_engine/tasks/configure", "Restore the former daemon.json", "dest"),
        (
            "docker_engine/tasks/open_files",
            "Keep the init script from asking for more open files than the host allows",
            "path",
        ),
        ("docker_engine/tasks/teardown", "Restore the files that were there", "dest"),
        ("session_firewall/tasks/configure", "Make the init script apply the rules before the engine starts", "path"),
        ("session_firewall/tasks/teardown", "Remove them from the init script", "path"),
        ("folders/tasks/mount", "Write its line to fstab", "path"),
        ("folders/tasks/mount", "Remove the line again", "path"),
        ("folders/tasks/teardown", "Remove its line from fstab", "path"),
    ],
)
def test_a_file_that_only_root_may_read_stays_so_and_is_not_printed(tmp_path: Path, file: str, name: str, path: str):
    """A proxy's password may be in it (docs/proxy.md), or a share's."""
    own = tmp_path / "file"
    own.write_text(TEXT, encoding="utf-8")
    own.chmod(0o600)
    (task,) = (t for t in tasks_of(yaml.safe_load((ROOT / f"roles/{file}.yml").read_text())) if t["name"] == name)
    (module,) = (key for key in task if key.startswith("ansible.builtin."))
    # The role writes as root; the modes are the same for anybody.
    task[module] = {key: value for key, value in task[module].items() if key not in {"owner", "group"}}
    found = {"files": {str(own): "former\n"}}
    task.pop("notify", None)
    if file != "docker_engine/tasks/teardown":
        task[module][path] = str(own)
    play = tmp_path / "play.yml"
    play.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [task]}]), encoding="utf-8")
    variables = json.dumps({**LOCAL, **FACTS, "docker_engine_found": found})
    done = ansible("ansible-playbook", "-i", "host,", "-e", variables, "--diff", "-v", play)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=1" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
    assert own.read_text(encoding="utf-8") != TEXT
    assert own.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("file", "names"),
    [
        (
            "docker_engine/tasks/configure",
            ["Read daemon.json", "Merge the defaults, the host's own options and the site's options"],
        ),
        ("docker_engine/tasks/configure", ["Look for a change whose restart is missing"]),
        ("docker_engine/tasks/teardown", ["Read the host's original state", "Parse the record"]),
        (
            "folders/tasks/mount",
            ["Read fstab", "Compare it with the role's line", "Refuse to mount over another mount"],
        ),
        ("folders/tasks/teardown", ["Read fstab"]),
    ],
)
def test_what_such_a_file_holds_is_not_printed_when_it_is_read(tmp_path: Path, file: str, names: list[str]):
    is_fstab = "fstab" in names[0]
    own = tmp_path / "file"
    own.write_text(
        "//nas/x /srv/data cifs password=s3cret 0 0\n" if is_fstab else json.dumps({"proxies": "s3cret"}),
        encoding="utf-8",
    )
    chosen = [t for t in tasks_of(yaml.safe_load((ROOT / f"roles/{file}.yml").read_text())) if t["name"] in names]
    for task in chosen:
        if command := task.get("ansible.builtin.command"):
            command["argv"] = ["cat", str(own)]
    play = tmp_path / "play.yml"
    play.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": chosen}]), encoding="utf-8")
    mount = {"src": "nas:/export", "fstype": "nfs"}
    variables = {"folders_root": "/srv/data", "folders_mount": mount, "folders_mountpoint": {"rc": 1}}
    engine = {"docker_engine_daemon_defaults": {}, "docker_engine_daemon_options": {}}
    done = ansible("ansible-playbook", "-i", "host,", "-e", json.dumps({**LOCAL, **variables, **engine}), "-v", play)
    assert done.returncode == (2 if len(names) > 2 else 0), done.stdout + done.stderr
    assert ("(//nas/x)" in done.stdout) is (len(names) > 2)
    assert "s3cret" not in done.stdout + done.stderr
