"""The playbooks' filters: Ansible loads them all anew in each task's process that has any filter in its templates."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from filter_plugins import certificates, control_node, folders, images, networks

ROOT = Path(__file__).parents[3]
FILTERS = control_node.FilterModule().filters()
FOLDERS = folders.FilterModule().filters()
NETWORKS = networks.FilterModule().filters()
settings_errors, catalog_errors = FILTERS["muster_settings_errors"], FILTERS["muster_catalog_errors"]
_LOAD_ALL = """
import runpy, sys
from pathlib import Path
for path in sorted(Path("filter_plugins").glob("*.py")):
    runpy.run_path(str(path))["FilterModule"]().filters()
print(*sorted({"pydantic", "numpy", "numba", "sqlalchemy"} & set(sys.modules)))
"""


def test_no_filter_loads_a_large_library_before_it_is_used():
    done = subprocess.run([sys.executable, "-c", _LOAD_ALL], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_settings_are_refused_before_they_are_written_by_the_names_of_the_roles_variables():
    wrong = {"cluster": "a", "scheduling": {"order": "ours", "placement": "nowhere"}, "lost_after": 5, "master_port": 0}
    errors = settings_errors(yaml.safe_dump(wrong), {"lost_after": 5, "master_port": 0}, ["ours"])
    assert {error.partition("; ")[0] for error in errors} == {
        "control_node_settings.master_port: 0 is too small",
        "control_node_settings.lost_after: there is no such field",
        "control_node_scheduling.placement: there is no scheduler plugin 'nowhere'",
    }


def test_settings_that_do_not_agree_are_an_error_of_all_settings():
    (error,) = settings_errors("owner_uid: unix\n", {"owner_uid": "unix"}, [])
    assert error.startswith("control_node_settings: owner_uid: unix needs owner_uid_range")


def test_a_catalog_is_refused_before_it_is_written_by_the_variable_that_it_comes_from():
    wrong = {"images": [{"name": "a", "reference": "a:1", "minimum": {"cpu": "lots"}}]}
    (error,) = catalog_errors(yaml.safe_dump(wrong), "images_catalog")
    assert error.startswith("images_catalog[0].minimum.cpu: 'lots' is not a number")
    assert catalog_errors("images: []\n", "images_catalog") == []


@pytest.mark.parametrize("networks", ["10.0.0.0/8", "10.0.0.0/8,fc00::/7", "5", {"to": "10.0.0.5"}])
def test_networks_that_are_not_a_list_are_one_error(networks):
    errors = NETWORKS["muster_network_errors"](networks, "session_firewall_closed")
    assert errors == [f"session_firewall_closed: {networks!r} is not a list; write a list, even of one"]


@pytest.mark.parametrize(
    ("exception", "problem"),
    [
        ({"to": "10.1.0.20", "port": 99999}, "99999 is no port"),
        ({"to": "10.1.0.20", "port": 0}, "0 is no port"),
        ({"to": "registry.example.org", "port": 443}, "'registry.example.org' is no network"),
        ({"to": "10.1.0.20", "protocol": "udp"}, "10.1.0.20 has a protocol without a port, and would open all"),
    ],
)
def test_an_exception_that_the_firewall_could_not_apply_is_an_error(exception, problem):
    (error,) = NETWORKS["muster_exception_errors"]([exception], "session_firewall_open")
    assert error.partition("; ")[0] == f"session_firewall_open: {problem}"


def test_exceptions_may_name_a_port_and_its_protocol_or_mean_all_ports():
    exceptions = [{"to": "10.1.0.20"}, {"to": "10.1.0.0/16", "port": "53", "protocol": "udp"}]
    assert NETWORKS["muster_exception_errors"](exceptions, "session_firewall_open") == []


@pytest.mark.parametrize(
    ("pool", "prefix", "error"),
    [
        ("ten", 24, "pool: 'ten' is no network"),
        ("10.204.0.1/14", 24, "pool: '10.204.0.1/14' is no network"),
        ("10.204.0.0/14", 40, "prefix: 40 is no prefix length of subnets in 10.204.0.0/14"),
        ("10.204.0.0/14", 8, "prefix: 8 is no prefix length of subnets in 10.204.0.0/14"),
        ("10.204.0.0/30", 24, "pool: 10.204.0.0/30 has no room for subnets"),
    ],
)
def test_a_pool_that_no_swarm_takes_is_an_error(pool, prefix, error):
    (line,) = NETWORKS["muster_pool_errors"](pool, prefix, ["pool", "prefix"])
    assert line.partition("; ")[0] == error


@pytest.mark.parametrize(("pool", "prefix"), [("10.204.0.0/14", 24), ("10.204.0.0/24", "24"), ("10.204.0.0/28", 29)])
def test_a_pool_that_a_swarm_takes_is_none(pool, prefix):
    assert NETWORKS["muster_pool_errors"](pool, prefix, ["pool", "prefix"]) == []


@pytest.mark.parametrize(
    ("managers", "problem"),
    [
        ("node-01", "'node-01' is not a list"),
        ([], "it is empty"),
        (["node-01", "x", "y"], "x, y is no host of the group `agents`"),
    ],
)
def test_managers_that_no_swarm_can_have_are_an_error(managers, problem):
    (line,) = NETWORKS["muster_manager_errors"](managers, ["node-01", "node-02"], "overlay_network_managers")
    assert line.partition("; ")[0] == f"overlay_network_managers: {problem}"
    assert NETWORKS["muster_manager_errors"](["node-02"], ["node-01", "node-02"], "overlay_network_managers") == []


@pytest.mark.parametrize(
    ("root", "mode", "folder", "problem"),
    [
        ("srv/folders", "0755", {"name": "a"}, "folders_root: 'srv/folders' is not an absolute path"),
        ("", "0755", {"name": "a"}, "folders_root: '' is not an absolute path"),
        ("/", "0755", {"name": "a"}, "folders_root: '/' is not an absolute path"),
        ("/srv", "abc", {"name": "a"}, "folders_mode: 'abc' is no mode"),
        ("/srv", 755, {"name": "a"}, "folders_mode: 755 without quotes is a number, which stands for 0o1363"),
        ("/srv", "0755", {"name": ""}, "folders_list: '' is not a path below folders_root"),
        ("/srv", "0755", {"name": "../a"}, "folders_list: '../a' is not a path below folders_root"),
        ("/srv", "0755", {"name": "/a"}, "folders_list: '/a' is not a path below folders_root"),
        ("/srv", "0755", {"name": "a", "mode": 750}, "folders_list: mode of a: 750 without quotes is a number, which"),
    ],
)
def test_a_folder_elsewhere_or_of_another_mode_than_is_meant_is_an_error(root, mode, folder, problem):
    (error,) = FOLDERS["muster_folder_errors"](root, mode, [folder])
    assert error.startswith(problem)


@pytest.mark.parametrize("mode", ["0755", "755", "2770", "u=rwx,g=rx,o=", "g+s", 0o755, 0o700])
def test_a_mode_may_be_written_in_each_of_ansibles_ways(mode):
    assert FOLDERS["muster_folder_errors"]("/srv/muster", mode, [{"name": "a/b", "mode": mode}, {"name": "..a"}]) == []


def test_what_is_no_certificate_is_an_error(tmp_path):
    certificate_errors = certificates.FilterModule().filters()["muster_certificate_errors"]
    good, der = tmp_path / "good.pem", tmp_path / "ca.der"
    good.write_bytes(b"Proxy\n-----BEGIN CERTIFICATE-----\r\nMII\r\n-----END CERTIFICATE-----\r\n")
    der.write_bytes(b"\x30\x82\x01")
    assert certificate_errors([str(good), "somewhere/ca.pem"]) == []
    assert [
        error.partition("; ")[0] for error in certificate_errors([str(good), str(der), str(tmp_path / "ca.pem")])
    ] == [
        f"site_ca_certificates: {der} holds no certificate in PEM",
        f"site_ca_certificates: {tmp_path}/ca.pem cannot be read here: No such file or directory",
    ]
    assert certificate_errors(str(good)) == [
        f"site_ca_certificates: {str(good)!r} is not a list; write a list, even of one"
    ]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"source": {}}, "its source has neither of mmdebstrap and registry"),
        ({"source": {"mmdebstrap": {}, "registry": "a:1"}}, "its source has both mmdebstrap and registry"),
        (
            {"source": {"registry": "a:1"}, "reference": None, "versions": {"1": "a:1"}},
            "it has a source and no reference",
        ),
    ],
)
def test_a_source_that_no_image_can_come_from_is_an_error(entry, problem):
    source_errors = images.FilterModule().filters()["muster_source_errors"]
    (error,) = source_errors([{"name": "a", "reference": "a:1", **entry}], "100G")
    assert error.startswith(f"images_catalog: a: {problem}")
    assert source_errors([{"name": "a", "reference": "a:1", "source": {"mmdebstrap": {}}}, {"name": "b"}], 5) == []
    assert source_errors([], "lots") == ["images_max_size: 'lots' is not an amount of bytes; write bytes such as 100G"]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("control_node_scheduler_plugins", "/srv/ours.py", "'/srv/ours.py' is not a list"),
        ("control_node_web_arguments", "--port 1", "'--port 1' is not a list"),
        ("control_node_cron_schedule", "often", "'often' is no time of cron"),
        ("control_node_cron_schedule", "", "'' is no time of cron"),
        ("control_node_socket", "api.sock", "'api.sock' is not an absolute path"),
        ("control_node_database", "muster.db", "the URL cannot be opened"),
        ("control_node_database", "mysql://u:s3cret@db/muster", "a URL of mysql cannot be opened"),
    ],
)
def test_an_argument_of_the_control_node_that_cannot_be_is_an_error(name, value, problem):
    right = {
        "control_node_scheduler_plugins": ["/srv/ours.py"],
        "control_node_web_arguments": [],
        "control_node_cron_schedule": "*/5 8-18 * * mon-fri",
        "control_node_socket": "",
        "control_node_database": "postgresql://muster@/muster?host=db1:5432&host=db2:5432",
    }
    argument_errors = FILTERS["muster_control_node_errors"]
    assert argument_errors(right) == argument_errors({**right, "control_node_cron_schedule": "@hourly"}) == []
    (error,) = argument_errors({**right, name: value})
    assert error.startswith(f"{name}: {problem}")
    assert "s3cret" not in error
