"""The signal before a session's end, on the real engine: once for each launch, and only to the command."""

import time

from tests.modules.cluster_on_host import desired, session

TRAP = "trap 'echo got it >>/tmp/got' USR1; echo >/tmp/ready; while :; do sleep 0.1; done"


def signalled(gang, count, kernels=("main1",)):
    return {**desired(gang, "keep"), "signal": {"signal": 10, "count": count, "kernels": list(kernels)}}


def ready(cluster, gang, kernel):
    until_there(cluster, gang, kernel, "test -e /tmp/ready")


def until_there(cluster, gang, kernel, check):
    give_up_at = time.monotonic() + 60
    while cluster.run_in(gang, kernel, "sh", "-c", f"{check} && echo yes || echo no") != "yes":
        assert time.monotonic() < give_up_at, check
        time.sleep(0.05)


def sent_in(result):
    kernels = result["report"]["kernels"]
    return {kernel["name"]: (kernel["signals"], kernel["signal_receivers"]) for kernel in kernels}


def test_a_command_is_sent_each_signal_once_and_other_kernels_none(cluster):
    gang = session(["main1", "sub1"], command=["sh", "-c", TRAP])
    cluster.converge(gang)
    for kernel in ("main1", "sub1"):
        ready(cluster, gang, kernel)
    wish = signalled(gang, 1)
    foreseen = cluster.converge(wish, check=True)
    assert sent_in(cluster.converge(desired(gang, "keep"))) == {"main1": (0, 0), "sub1": (0, 0)}
    result = cluster.converge(wish)
    assert result["diff"] == foreseen["diff"] != {}
    assert sent_in(result) == {"main1": (1, 1), "sub1": (0, 0)}
    assert not cluster.converge(wish)["changed"]
    # Linux keeps one of two equal signals that come while a process has not yet handled the first.
    until_there(cluster, gang, "main1", '[ "$(wc -l </tmp/got)" = 1 ]')
    assert sent_in(cluster.converge(signalled(gang, 2))) == {"main1": (2, 1), "sub1": (0, 0)}
    until_there(cluster, gang, "main1", '[ "$(wc -l </tmp/got)" = 2 ]')
    assert cluster.run_in(gang, "sub1", "sh", "-c", "test -e /tmp/got || echo none") == "none"


def test_a_command_that_does_not_handle_it_goes_on(cluster):
    gang = session(command=["sh", "-c", "echo >/tmp/ready; while :; do sleep 0.1; done"])
    cluster.converge(gang)
    ready(cluster, gang, "main1")
    result = cluster.converge(signalled(gang, 1))
    assert sent_in(result) == {"main1": (1, 0)}
    assert [kernel["state"] for kernel in result["report"]["kernels"]] == ["running"]


def test_a_signal_that_could_not_be_recorded_is_not_sent_until_it_can(cluster):
    gang = session(command=["sh", "-c", TRAP])
    cluster.converge(gang)
    ready(cluster, gang, "main1")
    in_its_way = cluster.paths.kernel_keys(gang["id"], "main1") / "signals.new"
    in_its_way.mkdir()
    result = cluster.converge(signalled(gang, 1))
    assert sent_in(result) == {"main1": (0, 0)}
    assert "the signal to" in result["warnings"][0]
    in_its_way.rmdir()
    assert sent_in(cluster.converge(signalled(gang, 1))) == {"main1": (1, 1)}
    until_there(cluster, gang, "main1", '[ "$(wc -l </tmp/got)" = 1 ]')
