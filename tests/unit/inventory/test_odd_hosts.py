"""Roles on hosts whose locale, encodings, paths and package lists are not those of a fresh installation."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.running.forked_ansible import LOCAL, ROOT, ansible
from tests.unit.inventory.test_files_of_hosts import tasks_of

SHELL = "#!/bin/sh\n"
_CHANGING = ("Record", "Trust", "Provision", "Remove")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a program of the test's before those of this machine."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")

    def make(name: str, script: str) -> None:
        (directory / name).write_text(SHELL + script, encoding="utf-8")
        (directory / name).chmod(0o755)

    return make


def tasks(path: str, *names: str) -> list[dict[str, Any]]:
    found = tasks_of(yaml.safe_load((ROOT / "roles" / f"{path}.yml").read_text(encoding="utf-8")))
    return [task for task in found if task["name"] in names]


def run(directory: Path, chosen: list[dict[str, Any]], **variables: object) -> str:
    play = directory / "play.yml"
    play.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": chosen}]), encoding="utf-8")
    done = ansible("ansible-playbook", "-i", "host,", "-e", json.dumps({**LOCAL, **variables}), play)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_young_package_lists_without_a_package_are_fetched_again(tmp_path, programs):
    """As after the vendor's repository was added by a run that broke off before it fetched the list."""
    programs("dpkg-query", "exit 1")
    programs("find", "echo /var/lib/apt/lists/partial; echo /var/lib/apt/lists/deb_Packages")
    programs("apt-cache", "echo 'Package: bash'")
    chosen = yaml.safe_load((ROOT / "roles/apt_packages/tasks/main.yml").read_text(encoding="utf-8"))
    for task in chosen:
        if "ansible.builtin.apt" in task:
            del task["ansible.builtin.apt"]
            task["ansible.builtin.debug"] = {"msg": f"apt: {task['name']}"}
    for names, is_fetched in ((["bash"], False), (["bash", "docker-ce"], True)):
        said = run(tmp_path, chosen, apt_packages_names=names, apt_packages_cache_valid_s=86400)
        assert "apt: Install the missing packages" in said
        assert ("apt: Fetch the package lists" in said) is is_fetched


def test_packages_that_would_take_anothers_place_are_refused(tmp_path, programs):
    """On a node of Kubernetes the distribution's engine would take containerd.io away."""
    programs("apt-get", '[ "$4" = bash ] || echo "Remv containerd.io [1.7.27-1]"; echo "Inst $4"')
    chosen = tasks("apt_packages/tasks/main", "Simulate their installation", "Refuse to remove what the host has")
    chosen[1]["ignore_errors"] = True
    for name, is_refused in (("bash", False), ("docker.io", True)):
        said = " ".join(run(tmp_path, chosen, apt_packages_missing=[name]).split())
        assert ("ignored=1" in said) is is_refused
        assert ("To install docker.io on host, apt would remove containerd.io." in said) is is_refused


@pytest.mark.parametrize(
    ("found", "stays"),
    [
        ({"containerd": True, "packages": []}, True),
        ({"containerd": False, "packages": ["containerd"]}, False),
        # Recorded by an earlier version.
        ({"packages": ["bash", "containerd.io"]}, True),
        ({"packages": ["bash"]}, False),
    ],
)
def test_containerd_that_ran_without_an_engine_stays_when_the_engine_goes(tmp_path, programs, found, stays):
    programs("find", f'echo "$1" >>{tmp_path}/emptied')
    chosen = tasks(
        "docker_engine/tasks/remove",
        "Work out whether containerd was there without the engine",
        "Remove the engine's directories",
    )
    own = yaml.safe_load((ROOT / "roles/docker_engine/vars/main.yml").read_text(encoding="utf-8"))
    kept = {"docker_engine_containerd_directories": own["docker_engine_containerd_directories"]}
    files = {"files": {"/etc/docker/daemon.json": None}}
    run(tmp_path, chosen, docker_engine_found={**files, **found}, docker_engine_emptied={}, **kept)
    emptied = set((tmp_path / "emptied").read_text().split())
    assert emptied >= {"/etc/docker", "/run/docker", "/var/lib/docker"}
    assert emptied.isdisjoint(kept["docker_engine_containerd_directories"]) is stays


@pytest.mark.parametrize(("staying", "going"), [([], ["containerd", "docker.io"]), (["containerd"], ["docker.io"])])
def test_a_package_that_is_to_stay_is_not_purged_with_what_needed_it(tmp_path, programs, staying, going):
    """One of containerd's takes the service away that was installed by hand under the same name."""
    programs("cat", 'echo \'{"packages": ["bash"]}\'')
    programs("dpkg-query", "echo 'ii  docker.io'")
    programs("apt-mark", "exit 0")
    programs(
        "apt-get",
        f"""case "$*" in
*--simulate*docker.io) echo "Purg docker.io [20]"; echo "Purg containerd [1]" ;;
*--simulate*) ;;
*) echo "$*" >{tmp_path}/purged ;;
esac""",
    )
    chosen = yaml.safe_load((ROOT / "roles/apt_packages/tasks/teardown.yml").read_text(encoding="utf-8"))
    own = yaml.safe_load((ROOT / "roles/apt_packages/vars/main.yml").read_text(encoding="utf-8"))
    run(tmp_path, chosen, **own, apt_packages_names=["docker.io"], apt_packages_staying=staying)
    assert sorted((tmp_path / "purged").read_text().split()[3:]) == going


def test_directories_of_an_engine_that_are_not_there_stop_no_teardown_in_any_language(tmp_path, programs):
    programs("find", '[ "$LC_ALL" = C ] && echo No such file >&2 || echo Datei nicht gefunden >&2\nexit 1')
    chosen = tasks("docker_engine/tasks/remove", "Remove the engine's directories")
    found = {"files": {"/etc/docker/daemon.json": None}}
    others = {"docker_engine_emptied": {}, "docker_engine_keeps_containerd": False}
    assert "failed=0" in run(tmp_path, chosen, docker_engine_found=found, **others)


def test_a_certificate_with_line_ends_of_windows_is_found_in_the_trust_store(tmp_path):
    (tmp_path / "ca.pem").write_bytes(b"-----BEGIN\r\nMII\r\n-----END\r\n")
    (tmp_path / "bundle").write_bytes(b"one\n" + (tmp_path / "ca.pem").read_bytes() + b"two\n")
    (check,) = tasks("site_ca/tasks/main", "Check whether the trust store has them")
    command = check["ansible.builtin.command"]
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    command["argv"] = [word.replace(bundle, f"{tmp_path}/bundle") for word in command["argv"]]
    show = {"ansible.builtin.debug": {"msg": "codes {{ site_ca_trusted.results | map(attribute='rc') | list }}"}}
    (tmp_path / "other.pem").write_bytes(b"-----BEGIN\nMIX\n-----END\n")
    certificates = [str(tmp_path / "ca.pem"), str(tmp_path / "other.pem")]
    assert "codes [0, 1]" in run(tmp_path, [check, show], site_ca_certificates=certificates)


@pytest.mark.parametrize(("second", "is_refused"), [("b/ca.crt", True), ("b/other.pem", False)])
def test_certificates_that_would_take_each_others_place_are_refused(tmp_path, second, is_refused):
    """A host would trust one of them, and each run would change it."""
    chosen = tasks("site_ca/tasks/main", "Refuse certificates that would take each other's place")
    chosen[0]["ignore_errors"] = True
    said = run(tmp_path, chosen, site_ca_certificates=["a/ca.pem", second])
    assert ("ignored=1" in said) is is_refused
    assert ("ca.crt, ca.crt. Rename one." in " ".join(said.split())) is is_refused


def test_accounts_with_comments_of_any_encoding_are_recorded(tmp_path, programs):
    (tmp_path / "passwd").write_bytes(b"root:x:0:0::/root:/bin/sh\nada:x:1000:1000:Ada Gr\xfcn:/home/ada:/bin/sh\n")
    script = (ROOT / "roles/docker_engine/files/found.py").read_text(encoding="utf-8")
    for path in ("/etc/passwd", "/var/lib/muster/found.json"):
        script = script.replace(path, str(tmp_path / Path(path).name))
    programs("dpkg-query", "exit 0")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ada" in json.loads((tmp_path / "found.json").read_text())["accounts"]


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("muster.service", "ExecStart='/opt/my 100%% venv/bin/muster' daemon"),
        ("muster-web.service", "ExecStart='/opt/my 100%% venv/bin/muster' web --tls-key '/etc/ssl/my 100%% key'"),
        ("cron", "* * * * * root '/opt/my 100\\% venv/bin/muster' pass >>/var/log/muster/pass.log 2>&1"),
        ("muster.init", "daemon='/opt/my 100% venv/bin/muster'"),
    ],
)
def test_muster_may_lie_in_a_directory_with_blanks_and_percent_signs(tmp_path, template, line):
    chosen = [{"ansible.builtin.debug": {"msg": "{{ lookup('template', path).splitlines() }}"}}]
    variables = {
        "control_node_muster_executable": "/opt/my 100% venv/bin/muster",
        "control_node_server_arguments": ["--tls-key", "/etc/ssl/my 100% key"],
        "control_node_cron_schedule": "* * * * *",
        "control_node_version": {"stdout_lines": ["0.1.0"]},
    }
    path = str(ROOT / f"roles/control_node/templates/{template}.j2")
    said = run(tmp_path, chosen, path=path, **variables)
    assert json.dumps(line) in said


def test_what_a_run_that_broke_off_left_of_mig_is_taken_away(tmp_path, programs):
    """The record is written before the GPUs are divided, and the unit after that."""
    programs("systemctl", "exit 0")
    record = tmp_path / "mig"
    record.mkdir()
    chosen = tasks("fgpu/tasks/teardown", "Find what was set up", "Undo MIG")
    (tmp_path / "mig_teardown.yml").write_text((ROOT / "roles/fgpu/tasks/mig_teardown.yml").read_text())
    (tmp_path / "mig_geometry.yml").write_text(
        yaml.safe_dump([{"ansible.builtin.debug": {"msg": "it is to {{ fgpu_mig_command }}"}}])
    )
    paths = {f"fgpu_{name}": str(tmp_path / name) for name in ("mps_unit", "mig_unit", "mig_program")}
    said = run(tmp_path, chosen, fgpu_mig_directory=str(record), **paths)
    assert "it is to restore" in said
    assert not record.exists()


@pytest.mark.parametrize(("playbook", "changes"), [("site", 4), ("teardown", 3)])
def test_who_became_root_without_logging_in_has_all_programs(tmp_path, monkeypatch, playbook, changes):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (tmp_path / "group_vars").symlink_to(ROOT / "playbooks/group_vars")
    plays = yaml.safe_load((ROOT / f"playbooks/{playbook}.yml").read_text(encoding="utf-8"))
    # The others of the teardown ask the engine and the control node only.
    changing = [play | {"hosts": "all", "become": False} for play in plays if play["name"].startswith(_CHANGING)]
    find = {"ansible.builtin.command": {"argv": ["sh", "-c", "command -v update-ca-certificates service"]}}
    for play in changing:
        play.pop("roles", None)
        play["tasks"] = [find]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(changing), encoding="utf-8")
    done = ansible("ansible-playbook", "-i", "host,", "-e", json.dumps(LOCAL), tmp_path / "play.yml")
    assert (done.returncode, len(changing)) == (0, changes), done.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--port", "8443", "--socket", "/run/muster-api.sock"], ""),
        (["--prt", "8443"], "No such option '--prt'."),
        (["--host"], "Option '--host' requires an argument."),
    ],
)
def test_arguments_that_the_server_does_not_know_are_refused_before_its_unit_is_written(tmp_path, arguments, problem):
    """Otherwise systemd starts it every few seconds, and the run reports success."""
    words = ("Try the server's arguments", "Refuse arguments that the server does not know")
    chosen = tasks("control_node/tasks/preflight", *words)
    chosen[1]["ignore_errors"] = True
    muster = Path(sys.executable).with_name("muster")
    given = {"control_node_muster_executable": str(muster), "control_node_server_arguments": arguments}
    said = run(tmp_path, chosen, control_node_serves=True, **given)
    assert ("ignored=1" in said) is bool(problem)
    if problem:
        assert f"control_node_web_arguments: {problem}" in said


@pytest.mark.parametrize(("place", "is_refused"), [("inventory", False), ("nowhere", True), ("of-the-settings", False)])
def test_an_inventory_that_the_daemon_could_not_read_is_refused(tmp_path, place, is_refused):
    """Where Ansible runs on another machine, it may be on that alone: the daemon would know no agent."""
    words = ("Look for the inventory where the daemon will", "Refuse an inventory that the daemon could not read")
    chosen = tasks("control_node/tasks/preflight", *words)
    chosen[1]["ignore_errors"] = True
    (tmp_path / "inventory").write_text("all:\n", encoding="utf-8")
    settings = {"inventory": str(tmp_path / "inventory")} if place == "of-the-settings" else {}
    read = yaml.safe_load((ROOT / "roles/control_node/vars/main.yml").read_text())["control_node_read_inventory"]
    named = {"control_node_inventory": str(tmp_path / place), "control_node_settings": settings}
    said = " ".join(run(tmp_path, chosen, control_node_read_inventory=read, **named).split())
    assert (f"control_node_inventory: {tmp_path / place} is not on" in said) is is_refused
    assert ("ignored=1" in said) is is_refused


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({}, ""),
        ({"docker_engine_minimum_version": "new"}, "docker_engine_minimum_version: 'new' is no version"),
        (
            {"docker_engine_storage_drivers": "overlay2"},
            "docker_engine_storage_drivers: 'overlay2' is no list of drivers",
        ),
        ({"docker_engine_storage_drivers": []}, "docker_engine_storage_drivers: '[]' is no list of drivers"),
    ],
)
def test_what_no_engine_could_meet_is_refused_before_one_is_installed(tmp_path, wrong, problem):
    first, *_ = yaml.safe_load((ROOT / "roles/docker_engine/tasks/preflight.yml").read_text(encoding="utf-8"))
    right = {"docker_engine_minimum_version": 20.10, "docker_engine_storage_drivers": ["overlay2"]}
    said = run(tmp_path, [{**first, "ignore_errors": True}], **{**right, **wrong})
    assert ("ignored=1" in said) is bool(problem)
    assert problem in said


@pytest.mark.parametrize(
    ("said", "is_refused"),
    [
        ("echo 'Docker version 26.1.5+dfsg1, build a72d7cd'", False),
        ("echo 'Emulate Docker CLI using podman.' >&2; echo 'podman version 5.4.2'", True),
        ("exit 127", False),
    ],
)
def test_podman_in_dockers_place_is_refused_before_anything_is_written(tmp_path, programs, said, is_refused):
    """Its socket answers as an engine's would, with a version of its own; Docker's package would remove it."""
    programs("docker", said)
    chosen = tasks(
        "docker_engine/tasks/preflight", "Look for its command line client", "Refuse Podman in Docker's place"
    )
    chosen[1]["ignore_errors"] = True
    output = " ".join(run(tmp_path, chosen).split())
    assert ("ignored=1" in output) is is_refused
    assert ("host has Podman in Docker's place" in output) is is_refused
    assert ("`apt-get remove podman-docker`" in output) is is_refused


def test_an_engine_beside_podmans_link_is_not_taken_for_the_hosts_own(tmp_path, programs):
    """Otherwise a teardown would leave the engine that Muster installed in Podman's place."""
    script = (ROOT / "roles/docker_engine/files/found.py").read_text(encoding="utf-8")
    for path in ("/var/lib/muster/found.json", "/var/run/docker.sock"):
        script = script.replace(path, str(tmp_path / Path(path).name))
    script = re.sub(r'SYSTEM_PATH = ".*"', f'SYSTEM_PATH = "{tmp_path}/bin"', script)
    programs("dpkg-query", "exit 0")
    (tmp_path / "podman.sock").touch()
    for make, is_engine in (
        (lambda socket: socket.symlink_to(tmp_path / "podman.sock"), False),
        (lambda socket: socket.touch(), True),
    ):
        (tmp_path / "docker.sock").unlink(missing_ok=True)
        make(tmp_path / "docker.sock")
        subprocess.run([sys.executable, "-c", script], check=True)
        assert json.loads((tmp_path / "found.json").read_text())["engine"] is is_engine


@pytest.mark.parametrize(
    ("release", "outcome"),
    [
        ("Debian", "apt: ['docker-cli']"),
        ("Debian-12", "without its command line client `docker`. Install the one that belongs to it (`docker-ce-cli`"),
        ("Ubuntu", "without its command line client `docker`. Install the one that belongs to it (`docker-ce-cli`"),
    ],
)
def test_an_engine_without_its_client_gets_one_that_is_a_package_of_its_own(tmp_path, release, outcome):
    """Debian 13's `docker.io` only recommends it. Elsewhere it comes with an engine, which may not be the host's."""
    chosen = tasks(
        "docker_engine/tasks/client", "Refuse an engine whose client is no package of its own", "Install the client"
    )
    chosen[0]["ignore_errors"] = True
    del chosen[1]["ansible.builtin.include_role"]
    chosen[1]["ansible.builtin.debug"] = {"msg": "apt: {{ apt_packages_names }}"}
    names = yaml.safe_load((ROOT / f"roles/docker_engine/vars/{release}.yml").read_text(encoding="utf-8"))
    assert outcome in " ".join(run(tmp_path, chosen, **names).split())


@pytest.mark.parametrize(
    ("firewalld", "bridge", "is_refused"),
    [
        ("exit 0", True, False),
        ('[ "$2" = --state ]', True, True),
        ('[ "$2" = --state ]', False, False),
        ("exit 252", True, False),  # as where it does not run
    ],
)
def test_an_engine_that_firewalld_does_not_know_is_refused(tmp_path, programs, firewalld, bridge, is_refused):
    """All that sessions send is dropped then, and site.yml reported success."""
    programs("firewall-cmd", firewalld)
    chosen = tasks(
        "docker_engine/tasks/verify",
        "Check whether firewalld knows the engine's bridges",
        "Fail if it does not know them",
    )
    (tmp_path / "docker0").mkdir()
    command = chosen[0]["ansible.builtin.command"]
    link = str(tmp_path / ("docker0" if bridge else "no-bridge"))
    command["argv"] = [word.replace("/sys/class/net/docker0", link) for word in command["argv"]]
    chosen[1]["ignore_errors"] = True
    output = " ".join(run(tmp_path, chosen).split())
    assert ("ignored=1" in output) is is_refused
    assert ("`systemctl restart docker`" in output) is is_refused


@pytest.mark.parametrize(
    ("linux", "can_be_set", "has_parser", "lacks_it"),
    [
        ("Y", True, False, True),
        ("Y", True, True, False),
        ("Y", False, False, False),  # as in a container, where the engine makes no use of it
        ("N", True, False, False),
        (None, False, False, False),
    ],
)
def test_a_host_with_apparmor_lacks_what_loads_profiles_if_nothing_is_installed(
    tmp_path, programs, linux, can_be_set, has_parser, lacks_it
):
    """An engine starts no container there, though it and `site.yml` say that all is well."""
    if has_parser:
        programs("apparmor_parser", "exit 0")
    if linux is not None:
        (tmp_path / "enabled").write_text(f"{linux}\n")
    chosen = tasks("docker_engine/tasks/preflight", "Look for what loads AppArmor's profiles")
    command = chosen[0]["ansible.builtin.command"]
    if can_be_set:
        (tmp_path / "security").mkdir()
    parts = {
        "/sys/module/apparmor/parameters/enabled": f"{tmp_path}/enabled",
        "/sys/kernel/security/apparmor": f"{tmp_path}/security",
        ":/usr/sbin:/sbin": "",
    }
    for part, here in parts.items():
        assert part in command["argv"][-1]
        command["argv"] = [word.replace(part, here) for word in command["argv"]]
    chosen.append({"ansible.builtin.debug": {"msg": "lacks {{ docker_engine_apparmor.rc != 0 }}"}})
    assert f"lacks {lacks_it}" in run(tmp_path, chosen)


def test_kernels_slices_are_not_stopped_by_systemd_at_a_shutdown(tmp_path):
    """A slice ends with what runs in it, unless its unit has no default dependencies. tests/lab asks systemd itself."""
    variables = yaml.safe_load((ROOT / "roles/docker_engine/vars/main.yml").read_text(encoding="utf-8"))
    units = [Path(path).relative_to("/etc/systemd/system") for path in variables["docker_engine_slice_drop_ins"]]
    # The second is for all slices whose names begin so: each kernel's.
    assert [str(unit.parent) for unit in units] == ["muster.slice.d", "muster-.slice.d"]
    chosen = tasks(
        "docker_engine/tasks/slices", "Create the directories of the slices' drop-ins", "Write the slices' drop-ins"
    )
    for task in chosen:
        (module,) = (key for key in task if key.startswith("ansible.builtin."))
        # The role writes as root.
        task[module] = {key: value for key, value in task[module].items() if key not in {"owner", "group"}}
    run(tmp_path, chosen, docker_engine_slice_drop_ins=[str(tmp_path / unit) for unit in units])
    for unit in units:
        assert "\n[Unit]\nDefaultDependencies=no\n" in (tmp_path / unit).read_text(encoding="utf-8")
