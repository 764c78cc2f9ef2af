"""What a launched kernel finds: its limits, its environment, its peers."""

from tests.modules.agent_code import open_files
from tests.modules.cluster_on_host import RUNTIME, log_with, session
from tests.waiting import eventually


def test_a_gang_is_launched_and_a_second_run_changes_nothing(cluster):
    gang = session(["main1", "sub1", "sub2"])
    first = cluster.converge(gang)
    second = cluster.converge(gang)
    assert first["sessions"] == [{"id": gang["id"], "outcome": "released", "error": None, "permanent": False}]
    assert first["changed"]
    assert second["sessions"] == first["sessions"]
    assert not second["changed"]
    assert second["diff"] == {"before": {}, "after": {}}
    kernels = second["report"]["kernels"]
    assert [(kernel["name"], kernel["state"]) for kernel in kernels] == [
        ("main1", "running"),
        ("sub1", "running"),
        ("sub2", "running"),
    ]
    assert [bool(kernel["ssh_port"]) for kernel in kernels] == [True, False, False]
    assert second["report"]["networks"] == [
        {"name": gang["network"]["name"], "session_id": gang["id"], "driver": "bridge", "generation": 1}
    ]
    assert second["report"]["generation"] == 1


def test_ssh_between_kernels_asks_nothing_and_shows_the_same_environment(cluster):
    odd = """a "b" 'c' \\d $HOME #e  f"""
    gang = session(["main1", "sub1"], env={"ODD": odd, "BACKENDAI_CLUSTER_HOSTS": "main1,sub1"})
    cluster.converge(gang)
    assert cluster.run_in(gang, "main1", f"{RUNTIME}/bin/ssh", "sub1", "hostname") == "sub1"
    assert cluster.run_in(gang, "sub1", "ssh", "main1", "hostname; id -un; id -gn") == "main1\nwork\nwork"
    login = cluster.run_in(gang, "main1", "ssh", "sub1", "env").splitlines()
    own = cluster.run_in(gang, "sub1", "env").splitlines()
    assert set(own) - set(login) == set()
    assert f"ODD={odd}" in login
    assert cluster.run_in(gang, "main1", "ssh", "-tt", "sub1", "[ -t 0 ] && echo terminal").strip() == "terminal"


def test_the_environment_is_the_images_then_the_manifests_then_the_users(cluster):
    gang = session(env={"RANK": "0", "FROM_IMAGE": "no", "TWO_LINES": "a\nb", "HOME": "/elsewhere"})
    cluster.converge(gang)
    shown = dict(
        entry.split("=", 1) for entry in cluster.run_in(gang, "main1", "cat", "/proc/1/environ").split("\0")[:-1]
    )
    assert shown == {
        "FROM_IMAGE": "no",
        "HOME": "/home/work",
        "HOSTNAME": "main1",
        "LOGNAME": "work",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "PATH": f"/bin:{RUNTIME}/bin",
        "RANK": "0",
        "SHELL": "/bin/sh",
        "TWO_LINES": "a\nb",
        "USER": "work",
    }


def test_limits_are_set_and_no_privilege_is_left(cluster):
    cluster.converge(session(command=["sh", "-c", "cat /proc/self/status; exec sleep 1000"]))
    (entry,) = cluster.containers().values()
    container = cluster.engine.container(entry["Id"])
    status = dict(
        line.split(":\t", 1)
        for line in log_with(cluster, entry["Id"], b"nonvoluntary").decode().splitlines()
        if ":\t" in line
    )
    assert status["CapEff"] == status["CapPrm"] == status["CapBnd"] == "0" * 16
    assert status["NoNewPrivs"] == "1"
    assert status["Uid"].split() == ["1000"] * 4
    assert status["Gid"].split() == ["1000"] * 4
    assert container["HostConfig"]["Init"]
    assert list(container["NetworkSettings"]["Networks"]) == [container["HostConfig"]["NetworkMode"]]


def test_kernels_may_open_as_many_files_as_the_host_allows_whatever_containers_have_by_default(cluster):
    entry = session()
    cluster.converge(entry)
    most = open_files.most_open_files()
    soft, hard = cluster.run_in(entry, "main1", "sh", "-c", "ulimit -Sn; ulimit -Hn").split()
    assert (int(soft), int(hard)) == (most, most)
    (container,) = cluster.containers().values()
    (limit,) = cluster.engine.container(container["Id"])["HostConfig"]["Ulimits"]
    assert (limit["Name"], limit["Soft"], limit["Hard"]) == ("nofile", most, most)


def test_limits_are_those_of_the_kernels_cgroup(cluster):
    gang = session(
        resources={
            "cpu_milli": 250,
            "mem_bytes": 96 << 20,
            "shm_bytes": 16 << 20,
            "disk_bytes": None,
            "pids": 77,
            "cpuset": "0",
        }
    )
    launched = cluster.converge(gang)
    assert list(launched["diff"]["after"]["containers"].values()) == ["running, generation 1, on CPUs 0"]
    assert not cluster.converge(gang)["changed"]
    script = """
        cd /sys/fs/cgroup
        if [ -e cgroup.controllers ]; then
          cat cpu.max memory.max pids.max cpuset.cpus
        else
          echo $(cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us)
          cat memory/memory.limit_in_bytes pids/pids.max cpuset/cpuset.cpus
        fi
        stat -f -c '%b %S' /dev/shm
    """
    cpu, memory, pids, cpuset, shm = cluster.run_in(gang, "main1", "sh", "-c", script).splitlines()
    quota, period = map(int, cpu.split())
    assert quota * 1000 == 250 * period
    assert int(memory) == 96 << 20
    assert int(pids) == 77
    assert cpuset == "0"
    blocks, block_bytes = map(int, shm.split())
    assert blocks * block_bytes == 16 << 20


def test_the_user_has_an_account_a_home_and_a_shell(cluster):
    gang = session()
    cluster.converge(gang)
    assert cluster.run_in(gang, "main1", "cat", "/etc/passwd") == "work:x:1000:1000::/home/work:/bin/sh"
    assert cluster.run_in(gang, "main1", "stat", "-c", "%u:%g %a", "/home/work") == "1000:1000 755"
    assert cluster.run_in(gang, "main1", "stat", "-c", "%u %a", "/run/muster/id_ed25519") == "1000 600"
    assert cluster.run_in(gang, "main1", "sh", "-c", "pwd; echo mine >file; cat file") == "/home/work\nmine"


def test_a_mount_is_seen_at_its_target(cluster):
    data = cluster.folders_root / "sets/mnist"
    data.mkdir(parents=True)
    (data / "digits").write_text("0123456789")
    mounts = [{"folder": "sets/mnist", "target": "/data", "read_only": True}]
    gang = session(mounts=mounts)
    cluster.converge(gang)
    assert cluster.run_in(gang, "main1", "cat", "/data/digits") == "0123456789"
    assert cluster.run_in(gang, "main1", "sh", "-c", "echo x 2>&1 >/data/new || true").endswith("Read-only file system")


def test_a_command_that_ends_at_once_is_no_failure_to_start(cluster):
    for command, exit_code in ((["true"], 0), (["sh", "-c", "exit 3"], 3), (["sh", "-c", "no-such-program"], 127)):
        gang = session(command=command)
        result = cluster.converge(gang)
        assert result["sessions"][0]["outcome"] == "released"
        (kernel,) = _when_ended(cluster)
        assert (kernel["state"], kernel["exit_code"]) == ("exited", exit_code)
        again = cluster.converge(gang)
        assert again["sessions"] == result["sessions"]
        assert not again["changed"]


def test_a_gang_that_was_released_stays_released_however_its_command_ends(cluster):
    gang = session(command=["sh", "-c", "sleep 1; no-such-program"])
    cluster.converge(gang)
    (kernel,) = _when_ended(cluster)
    assert kernel["exit_code"] == 127
    assert cluster.converge(gang)["sessions"][0]["outcome"] == "released"


def test_two_clusters_on_a_host_do_not_touch_each_other(make_cluster):
    one, other = make_cluster(), make_cluster()
    first, second = session(), session()
    one.converge(first)
    other.generation = 7
    other.converge(second)
    assert len(one.containers()) == len(other.containers()) == 1
    assert other.converge()["changed"]
    assert other.leaves_nothing()
    assert one.states() == {f"{first['network']['name']}-main1": "running"}
    assert not one.converge(first)["changed"]
    assert one.report()["generation"] == 1
    assert other.report()["generation"] == 7


def _when_ended(cluster):
    return eventually(
        lambda: cluster.report()["kernels"],
        lambda kernels: all(kernel["state"] == "exited" for kernel in kernels),
    )
