"""How many files a process of a kernel may have open, by what a host's /proc says."""

import shutil

import pytest

from tests.modules.agent_code import open_files

EVERYTHING = "000001ffffffffff"
WITHOUT_SYS_RESOURCE = "000001fffeffffff"


@pytest.fixture
def host(tmp_path):
    """Return a function that makes the /proc of a host of these processes, each a name and its hard limit."""

    def make(capabilities, *processes, own="20000", most="1073741816"):
        (tmp_path / "sys/fs").mkdir(parents=True)
        (tmp_path / "sys/fs/nr_open").write_text(f"{most}\n")
        numbered = [(str(number), *process) for number, process in enumerate(processes, 1)]
        for name, comm, hard in [("self", "python3", own), *numbered]:
            directory = tmp_path / name
            directory.mkdir()
            (directory / "comm").write_text(f"{comm}\n")
            (directory / "status").write_text(f"Name:\t{comm}\nCapPrm:\t{EVERYTHING}\nCapEff:\t{capabilities}\n")
            (directory / "limits").write_text(
                "Limit                     Soft Limit           Hard Limit           Units     \n"
                "Max processes             256683               256683               processes \n"
                f"Max open files            1024                 {hard:<20} files     \n"
            )
        return tmp_path

    return make


def test_a_host_whose_root_may_raise_limits_gives_as_many_as_docker_did_before(host):
    assert open_files.most_open_files(host(EVERYTHING, ("containerd", "524288"))) == 1 << 20


def test_nobody_gets_more_than_the_linux_kernel_allows(host):
    assert open_files.most_open_files(host(EVERYTHING, most="65536")) == 65536


def test_where_none_may_raise_limits_those_of_what_starts_containers_hold(host):
    proc = host(WITHOUT_SYS_RESOURCE, ("dockerd", "10000"), ("containerd", "9000"), ("bash", "10"), own="unlimited")
    assert open_files.most_open_files(proc) == 9000


def test_where_none_may_raise_limits_nobody_gets_more_than_the_host_has(host):
    assert open_files.most_open_files(host(WITHOUT_SYS_RESOURCE, ("containerd", "unlimited"))) == 20000


def test_a_process_that_ends_meanwhile_is_passed_over(host):
    proc = host(WITHOUT_SYS_RESOURCE, ("containerd", "5"), ("containerd", "6"), ("containerd", "7"))
    (proc / "1/limits").unlink()
    (proc / "2/comm").unlink()
    (proc / "3/limits").write_text("")
    assert open_files.most_open_files(proc) == 20000


def test_the_launches_of_a_run_look_at_all_processes_once(host):
    proc = host(WITHOUT_SYS_RESOURCE, ("containerd", "9000"))
    limits = [open_files.most_open_files(proc)]
    shutil.rmtree(proc / "1")
    assert [*limits, open_files.most_open_files(proc)] == [9000, 9000]
