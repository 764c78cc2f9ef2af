"""A host that was broken into is the one whose build of an image `roles/images` copies to the others."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest
import yaml

from tests.control_node import ROOT
from tests.hostile.image_archives import SmallImage, archive

# The output of the attacker's `docker save`; all else is this machine's engine.
FAKE = """#!/bin/sh
test "$1" = save && exec cat {archive}
exec {docker} "$@"
"""


@pytest.fixture
def reference(engine):
    name = f"muster-test/built-{uuid.uuid4().hex[:8]}:1"
    yield name
    for image in engine.images.list(name=name.rpartition(":")[0]):
        engine.images.remove(image.id, force=True)


def copied(tmp_path: Path, image: SmallImage, reference: str, said: bytes) -> subprocess.CompletedProcess[str]:
    """Run the role's copying from the host `liar` to the host `honest`, which are both this machine."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "said.tar").write_bytes(said)
    real = next(path for path in map(Path, os.get_exec_path()) if (path / "docker").exists()) / "docker"
    (programs / "docker").write_text(FAKE.format(archive=tmp_path / "said.tar", docker=real))
    (programs / "docker").chmod(0o755)
    play = {
        "hosts": "agents",
        "gather_facts": False,
        "environment": {"PATH": f"{programs}:{os.environ['PATH']}"},
        "vars": {
            "images_item": {"reference": reference},
            "images_recipe_hash": "r",
            "images_maker": "liar",
            "images_receivers": ["honest"],
            "images_max_size": "1M",
        },
        "tasks": [
            {
                "ansible.builtin.include_role": {"name": "images", "tasks_from": "copy"},
                "when": "inventory_hostname == 'honest'",
            }
        ],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    local = {"ansible_connection": "local", "images_builds": {"r": image.id}}
    hosts = {"agents": {"hosts": {"liar": local, "honest": local}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(hosts))
    command = [Path(sys.executable).parent / "ansible-playbook", "-i", tmp_path / "hosts.yml", tmp_path / "play.yml"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_ROLES_PATH": str(ROOT / "roles")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def left(tmp_path, monkeypatch):
    """Return what copies left that were broken off, on the hosts and on the control node: old ones, and new ones."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "elsewhere [1]").mkdir()
    (tmp_path / "tmp").symlink_to("elsewhere [1]")
    made = [
        [Path(tempfile.mkdtemp(prefix="muster-copy-", dir=place)) for place in ("/var/tmp", tmp_path / "tmp")]
        for _ in range(2)
    ]
    for directory in [*made[0], *made[1]]:
        (directory / "archive").write_bytes(b"a whole image")
    for directory in made[0]:
        os.utime(directory, (time.time() - 2 * 86400,) * 2)
    yield made
    for directory in made[1]:
        shutil.rmtree(directory)


def test_a_copy_removes_what_those_left_that_were_broken_off_a_day_ago(tmp_path, reference, left):
    old, new = left
    image = SmallImage(tags=(reference,))
    done = copied(tmp_path, image, reference, archive(image.files()))
    assert done.returncode == 0, done.stdout
    assert not any(directory.exists() for directory in old)
    assert all((directory / "archive").exists() for directory in new)
    assert list((tmp_path / "tmp").glob("muster-copy-*")) == [new[1]]


def test_its_build_arrives_under_its_name_alone(engine, tmp_path, reference):
    victim = reference.replace("built", "victim")
    image = SmallImage(tags=(reference, victim))
    done = copied(tmp_path, image, reference, archive(image.files()))
    assert done.returncode == 0, done.stdout
    assert engine.images.get(reference).id == image.id
    assert not engine.images.list(name=victim.rpartition(":")[0])


@pytest.mark.parametrize("what", ["another image", "no archive", "no end"])
def test_an_archive_that_is_not_the_hosts_build_is_loaded_nowhere(engine, tmp_path, reference, what):
    image, evil = SmallImage(tags=(reference,)), SmallImage(text=b"evil", tags=(reference,))
    said = {
        "another image": archive(evil.files()),
        "no archive": b"<html>",
        "no end": archive({"x": bytes(2 << 20), **image.files()}),
    }[what]
    done = copied(tmp_path, image, reference, said)
    assert done.returncode == 2, done.stdout
    assert f"image {reference} of liar cannot be copied: " in done.stdout
    assert "Load the image" not in done.stdout
    assert not engine.images.list(name=reference.rpartition(":")[0])
