"""Strategies for specs: valid ones with every field, and small gangs that compete."""

from typing import Any

from hypothesis import strategies as st

from muster.core.spec.mounts import HOME
from muster.core.spec.session_spec import SessionSpec
from tests.strategies.values import NOW, M, new_id, texts


def session_names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@st.composite
def mounts(draw: st.DrawFn) -> list[dict[str, Any]]:
    folders = draw(st.lists(st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5}){0,2}", fullmatch=True), max_size=3, unique=True))
    return [
        {"folder": folder, "target": f"/data/{number}{folder}", "read_only": draw(st.booleans())}
        for number, folder in enumerate(folders)
    ]


@st.composite
def role_entries(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw roles that a spec accepts, without resources that could disagree with the session's."""
    names = draw(st.lists(st.sampled_from(("ps", "worker", "sub", "data-loader")), max_size=3, unique=True))
    return [
        {
            "name": name,
            "replicas": draw(st.integers(1, 3)),
            "image": draw(st.none() | st.just("debian:12")),
            "command": draw(st.none() | texts().filter(str.strip)),
            "cpu": draw(st.none() | st.sampled_from((1, "500m", "0.25", 2.5))),
            "mem": draw(st.none() | st.sampled_from(("1G", "512M", 1 << 30))),
        }
        for name in names
    ]


@st.composite
def specs(draw: st.DrawFn) -> SessionSpec:
    """Draw valid specs that use every field."""
    roles = draw(role_entries())
    listed = 1 + sum(int(str(role["replicas"])) for role in roles)
    may_grow = not any(role["name"] == "sub" for role in roles)
    cluster_size: int | str | None = draw(st.none() | st.integers(listed, listed + 3 if may_grow else listed))
    if cluster_size is not None and may_grow and draw(st.booleans()):
        cluster_size = f"{cluster_size}-{draw(st.integers(int(cluster_size) + 1, int(cluster_size) + 3))}"
    command = draw(st.none() | texts().filter(str.strip))
    script = draw(st.just("#!/bin/sh\ntrue\n")) if command is None and draw(st.booleans()) else None
    is_batch = command is not None or script is not None
    gpu = draw(st.integers(0, 3))
    fgpu = 0 if gpu else draw(st.sampled_from((0, "0.25", 1, "3.5")))
    best_effort = draw(st.booleans()) if fgpu else False
    mounted = draw(mounts())
    written_to = [mount["target"] for mount in mounted if not mount["read_only"]]
    log_file = st.none() | st.sampled_from([f"{target}/%x-%3a.log" for target in (*written_to, f"{HOME}/.logs")])
    names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
    return SessionSpec.model_validate(
        {
            "name": draw(st.just("") | session_names()),
            "image": draw(st.sampled_from(("", "busybox", "registry.example:5000/team/image:1"))),
            "type": draw(st.sampled_from((None, "batch" if is_batch else "interactive"))),
            "command": command,
            "script": script,
            "run_on": draw(st.sampled_from(("main", "all"))),
            "cluster_size": cluster_size,
            "cluster_mode": draw(st.sampled_from(("single-node", "multi-node"))),
            "roles": roles,
            "cpu": draw(st.sampled_from((1, "0.5", "1500m", 64))),
            "mem": draw(st.sampled_from(("64M", "1G", "1.5GiB", 1 << 33))),
            "shm": draw(st.sampled_from(("64M", 0, "1K"))),
            "disk": draw(st.sampled_from((None, "1M", "1.5GiB", 1 << 40))),
            "gpu": gpu,
            "fgpu": fgpu,
            "fgpu_limit": draw(st.sampled_from((None, "3.5", 4))) if fgpu and not best_effort else None,
            "best_effort": best_effort,
            "env": draw(st.dictionaries(names, texts(), max_size=3)),
            "mounts": mounted,
            "priority": draw(st.integers(0, 100)),
            "time_limit": draw(st.none() | st.sampled_from((5, "90s", "1-12:00:00", "2h30m", "1:30:00"))),
            "resource_group": draw(st.sampled_from(("default", "gpu"))),
            "distributed_env": draw(st.booleans()),
            **draw(st.sampled_from(({}, {"tasks": 100}, {"tasks": 100_000}, {"tasks_per_kernel": 4}))),
            "slurm_env": draw(st.booleans()),
            "output": draw(log_file) if is_batch else None,
            "error": draw(log_file) if is_batch else None,
            "requeue": draw(st.booleans()),
            "ssh_keys": draw(st.lists(st.just("ssh-ed25519 AAAA me@laptop"), max_size=1)),
            **draw(what_is_asked_of_time_and_place()),
        }
    )


@st.composite
def what_is_asked_of_time_and_place(draw: st.DrawFn) -> dict[str, Any]:
    """Draw fields of a spec that say when and where it may start."""
    ids = st.lists(st.integers(1, 9).map(new_id), max_size=2)
    agents = st.lists(st.sampled_from(("a1", "a2", "a3")), max_size=2)
    return {
        "project": draw(st.sampled_from(("default", "vision"))),
        "after": draw(ids),
        "after_ok": draw(ids),
        "after_any": draw(ids),
        "begin": draw(st.none() | st.floats(NOW, NOW + 10**6)),
        "hold": draw(st.booleans()),
        "array": draw(st.sampled_from((None, "0-3", "1,3,5-9:2", "0-99%8"))),
        "preemptible": draw(st.booleans()),
        "gpu_models": draw(st.lists(st.sampled_from(("A100", "H100")), max_size=2)),
        "labels": draw(st.dictionaries(st.sampled_from(("disk", "site/zone")), texts(), max_size=2)),
        "agents": draw(agents),
        "exclude_agents": draw(st.sampled_from(((), ("a4",)))),
        "topology": draw(st.sampled_from(("any", "prefer-rack", "one-rack"))),
    }


@st.composite
def gang_specs(draw: st.DrawFn, *, never_spread: bool = False) -> SessionSpec:
    """Draw small gangs whose amounts are of the size of a small agent's: they compete."""

    def resources() -> dict[str, Any]:
        kind = draw(st.sampled_from(("none", "none", "gpu", "fgpu", "fgpu")))
        return {
            "cpu": f"{draw(st.sampled_from((250, 500, 1000, 1500, 3000)))}m",
            "mem": draw(st.sampled_from((64, 128, 512, 1024, 3000))) * M,
            "shm": 0,
            "gpu": draw(st.integers(1, 2)) if kind == "gpu" else 0,
            "fgpu": f"{draw(st.sampled_from((250, 300, 400, 500, 750, 1000, 1500, 2500)))}m" if kind == "fgpu" else 0,
        }

    names = draw(st.lists(st.sampled_from(("ps", "worker")), max_size=2, unique=True))
    roles = [{"name": name, "replicas": draw(st.integers(1, 2)), **resources()} for name in names]
    modes = ("single-node",) if never_spread else ("single-node", "multi-node")
    least = 1 + sum(int(str(role["replicas"])) for role in roles) + draw(st.integers(0, 2))
    more = draw(st.sampled_from((0, 0, 0, 1, 3)))
    return SessionSpec.model_validate(
        {
            "name": "gang",
            "image": "busybox",
            "roles": roles,
            "cluster_size": f"{least}-{least + more}" if more else least,
            "cluster_mode": draw(st.sampled_from(modes)),
            "priority": draw(st.sampled_from((40, 50, 50, 60))),
            "time_limit": draw(st.sampled_from((None, None, "10m", "1h"))),
            "preemptible": draw(st.booleans()),
            "requeue": draw(st.booleans()),
            "resource_group": draw(st.sampled_from(("default", "default", "gpu"))),
            **resources(),
        }
    )
