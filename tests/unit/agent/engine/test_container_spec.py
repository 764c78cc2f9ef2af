"""From a manifest's kernel to the engine's container: pure functions."""

import json

import pytest

from tests.modules.agent_code import agent_manifest, container_spec, gpu_access

SESSION_ID = "6f1c0000-0000-4000-8000-000000000000"
RESOURCES = {
    "cpu_milli": 1500,
    "mem_bytes": 1 << 30,
    "shm_bytes": 1 << 26,
    "disk_bytes": None,
    "pids": 99,
    "cpuset": None,
}
KERNEL = {
    "id": SESSION_ID,
    "name": "main1",
    "image": "muster/default:latest",
    "command": ["python", "train.py"],
    "env": {"RANK": "0"},
    "user": {"name": "work", "uid": 1000, "gid": 1001, "home": "/home/work"},
    "resources": RESOURCES,
    "gpus": [],
    "apps": [],
    "gpu_access": None,
    "mounts": [{"folder": "mnist", "target": "/data", "read_only": True, "owned": False}],
    "groups": [],
    "publish": [{"container_port": 2200, "host_ip": "127.0.0.1", "host_port": 0}],
    "files": {},
}
ACCESS = {"devices": None, "libraries": {}, "mounts": [], "env": {}, "usage": False, "leases": []}


def _manifest(**kernel):
    return agent_manifest.parse_manifest(
        {
            "version": 1,
            "cluster": "muster",
            "generation": 7,
            "databases": [],
            "runtime_path": "/opt/muster/runtime",
            "sshd_port": 2200,
            "folders_root": "/srv/muster/folders",
            "begin_by_s": None,
            "start_timeout_s": 60,
            "stop_grace_s": 10,
            "log_max_bytes": 1 << 20,
            "overlays": None,
            "kept_spools": [],
            "sessions": [
                {
                    "id": SESSION_ID,
                    "name": "train",
                    "generation": 7,
                    "desired": "launch",
                    "release": True,
                    "public_key": "ssh-ed25519 AAAA muster-train",
                    "network": {"name": "muster-6f1c00000000", "driver": "bridge"},
                    "folders": [],
                    "files": {},
                    "kernels": [{**KERNEL, **kernel}],
                }
            ],
        }
    )


def _body(storage_options=None, **kernel):
    manifest = _manifest(**kernel)
    (session,) = manifest.sessions
    environment = {"RANK": "0", "EMPTY": ""}
    binds = [gpu_access.Bind("/opt/muster/fgpu", "/opt/muster/fgpu", read_only=True)]
    return container_spec.container_body(
        manifest, session, session.kernels[0], environment, {"mnist": "/srv/real"}, binds, storage_options or {}
    )


def _environment(image_environment=(), **kernel):
    (session,) = _manifest(**kernel).sessions
    return container_spec.complete_environment(session.kernels[0], list(image_environment), "/rt", "/bin/sh")


def test_the_container_is_the_users_and_has_no_privilege():
    body = _body()
    assert body["User"] == "1000:1001"
    assert body["HostConfig"]["CapDrop"] == ["ALL"]
    assert body["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]
    assert body["HostConfig"]["RestartPolicy"] == {"Name": "no"}
    assert body["HostConfig"]["Init"] is True


def test_limits_are_in_the_engines_units():
    config = _body()["HostConfig"]
    assert config["NanoCpus"] == 1_500_000_000
    assert config["Memory"] == config["MemorySwap"] == 1 << 30
    assert (config["ShmSize"], config["PidsLimit"], config["CpusetCpus"]) == (1 << 26, 99, "")
    assert "DeviceRequests" not in config


def test_a_disk_limit_is_a_label_and_where_the_engine_can_its_own():
    limited = {**RESOURCES, "disk_bytes": 1 << 30}
    assert _body(resources=limited)["Labels"]["muster.disk"] == str(1 << 30)
    assert "StorageOpt" not in _body(resources=limited)["HostConfig"]
    assert _body({"size": "7"}, resources=limited)["HostConfig"]["StorageOpt"] == {"size": "7"}


def test_the_sessions_network_is_the_only_one_and_the_kernels_name_its_alias():
    body = _body()
    assert body["HostConfig"]["NetworkMode"] == "muster-6f1c00000000"
    assert body["NetworkingConfig"]["EndpointsConfig"] == {"muster-6f1c00000000": {"Aliases": ["main1"]}}
    assert body["Hostname"] == "main1"


def test_the_command_runs_behind_the_runtimes_entrypoint():
    assert _body()["Entrypoint"] == ["/opt/muster/runtime/bin/entrypoint"]
    assert _body()["Cmd"] == ["python", "train.py"]
    assert _body(command=[])["Cmd"] == []
    assert _body()["Env"] == ["RANK=0", "EMPTY="]


def test_labels_say_whose_it_is():
    assert _body()["Labels"] == {
        "muster.cluster": "muster",
        "muster.session": SESSION_ID,
        "muster.session-name": "train",
        "muster.kernel": SESSION_ID,
        "muster.kernel-name": "main1",
        "muster.generation": "7",
        "muster.sshd-port": "2200",
        "muster.public-key": "ssh-ed25519 AAAA muster-train",
        "muster.gpus": "[]",
        "muster.apps": "[]",
        # Said of each container, or it would have its image's.
        "muster.disk": "",
    }


def test_a_label_names_the_gpus_so_that_the_host_alone_can_account_for_them():
    gpus = [
        {"uuid": "GPU-a", "amount": 500, "capacity": 2000, "mem_bytes": 2 << 30, "compute": 250},
        {"uuid": "GPU-b", "amount": None, "capacity": None, "mem_bytes": None, "compute": None},
    ]
    assert json.loads(_body(gpus=gpus)["Labels"]["muster.gpus"]) == gpus


def test_mounts_are_keys_runtime_folders_as_resolved_and_what_gpus_need():
    mounts = [(mount["Source"], mount["Target"], mount["ReadOnly"]) for mount in _body()["HostConfig"]["Mounts"]]
    assert mounts == [
        (f"/run/muster/muster/{SESSION_ID}/main1", "/run/muster", True),
        ("/opt/muster/runtime", "/opt/muster/runtime", True),
        ("/srv/real", "/data", True),
        ("/opt/muster/fgpu", "/opt/muster/fgpu", True),
    ]


def test_ports_are_published_as_the_manifest_says():
    publish = [
        {"container_port": 2200, "host_ip": "127.0.0.1", "host_port": 0},
        {"container_port": 8888, "host_ip": "", "host_port": 8080},
        {"container_port": 9999, "host_ip": "", "host_port": "30000-32767"},
    ]
    assert _body(publish=publish)["HostConfig"]["PortBindings"] == {
        "2200/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}],
        "8888/tcp": [{"HostIp": "", "HostPort": "8080"}],
        "9999/tcp": [{"HostIp": "", "HostPort": "30000-32767"}],
    }
    assert _body(publish=[])["HostConfig"]["PortBindings"] == {}


def test_gpus_are_requested_by_uuid():
    access = {**ACCESS, "devices": {"driver": "nvidia", "ids": ["GPU-a", "GPU-b"]}}
    assert _body(gpu_access=access)["HostConfig"]["DeviceRequests"] == [
        {"Driver": "nvidia", "DeviceIDs": ["GPU-a", "GPU-b"], "Capabilities": [["gpu", "compute", "utility"]]}
    ]


def test_gpus_are_requested_by_cdi_where_the_manifest_says_so():
    access = {**ACCESS, "devices": {"driver": "cdi", "ids": ["nvidia.com/gpu=GPU-a"]}}
    assert _body(gpu_access=access)["HostConfig"]["DeviceRequests"] == [
        {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-a"]}
    ]


def test_a_kernel_may_have_all_but_devices():
    assert "DeviceRequests" not in _body(gpu_access=ACCESS)["HostConfig"]


def test_the_manifests_environment_wins_over_the_images():
    environment = _environment(["RANK=9", "LANG=C.UTF-8", "PATH=/image/bin"])
    assert environment["RANK"] == "0"
    assert environment["LANG"] == "C.UTF-8"
    assert environment["PATH"] == "/image/bin:/rt/bin"


def test_an_image_without_a_path_gets_the_usual_one():
    assert _environment()["PATH"] == f"{container_spec.DEFAULT_PATH}:/rt/bin"


@pytest.mark.parametrize(
    ("image", "devices", "visible"),
    [
        ([], None, "void"),
        (["NVIDIA_VISIBLE_DEVICES=all"], None, "void"),
        (["NVIDIA_VISIBLE_DEVICES=all"], {"driver": "nvidia", "ids": ["GPU-a", "GPU-b"]}, "GPU-a,GPU-b"),
        (["NVIDIA_VISIBLE_DEVICES=all"], {"driver": "cdi", "ids": ["nvidia.com/gpu=GPU-a"]}, "void"),
    ],
)
def test_an_image_cannot_ask_for_more_gpus_than_were_given(image, devices, visible):
    access = {**ACCESS, "devices": devices} if devices else None
    assert _environment(image, gpu_access=access).get("NVIDIA_VISIBLE_DEVICES") == visible


def test_the_variables_of_a_gpu_share_replace_those_of_the_user():
    access = {**ACCESS, "env": {"CUDA_MPS_PIPE_DIRECTORY": "/run/pipe"}}
    environment = _environment(env={"CUDA_MPS_PIPE_DIRECTORY": "/mine", "RANK": "0"}, gpu_access=access)
    assert (environment["CUDA_MPS_PIPE_DIRECTORY"], environment["RANK"]) == ("/run/pipe", "0")


def test_sshd_gets_the_environment_in_one_line_quoted():
    config = container_spec.sshd_config_with("Port 2200\n", {"A": '1 "2" \\3', "B": "two\nlines", "C": ""})
    assert config == 'SetEnv "A=1 \\"2\\" \\\\3" "C="\nPort 2200\n'


def test_an_overlay_spans_the_swarm_and_can_be_attached_to():
    overlay = agent_manifest.Overlay(SESSION_ID, "muster-6f1c00000000", "7", None, False)
    body = container_spec.overlay_body("muster", overlay)
    assert (body["Name"], body["Driver"], body["Scope"]) == ("muster-6f1c00000000", "overlay", "swarm")
    assert body["Attachable"] is True
    assert body["Options"] == {}
    assert body["Labels"] == {"muster.cluster": "muster", "muster.session": SESSION_ID, "muster.generation": "7"}


def test_an_overlay_has_the_mtu_and_the_encryption_of_the_manifest():
    overlay = agent_manifest.Overlay(SESSION_ID, "n", "7", 1400, True)
    assert container_spec.overlay_body("muster", overlay)["Options"] == {
        "com.docker.network.driver.mtu": "1400",
        "encrypted": "",
    }
