"""The files that give a container its user: accounts, ssh's client configuration, the home directory."""

from __future__ import annotations

import io
import json
import posixpath
import shlex
import stat
import tarfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import host_state, names

if TYPE_CHECKING:
    from ..engine.api import EngineApi

# Docker's terminals belong to this group, and sshd, which may not change that, insists on it.
TTY_GID = 5
_BASH, _SH = "/bin/bash", "/bin/sh"
_SSH_DIRECTORY, _PROFILE_DIRECTORY = "/etc/ssh", "/etc/profile.d"
_APPS_PARENT = posixpath.dirname(names.APPS_IN_CONTAINER)
_INCLUDE = f"Include {names.KEYS_IN_CONTAINER}/ssh_config\n"
# In the home directory, for clients that read neither ssh's system-wide configuration nor what it includes.
_USERS_SSH_DIRECTORY = ".ssh"
_USERS_CONFIG, _USERS_KNOWN_HOSTS = ".ssh/config", ".ssh/known_hosts"
_USERS_KEYS = (".ssh/id_ed25519", ".ssh/id_ed25519.pub")
_USERS_SSH_PATHS = (_USERS_SSH_DIRECTORY, _USERS_CONFIG, *_USERS_KEYS)
# Extended attributes of a tar's entry.
_XATTRS = "SCHILY.xattr."
# Go's os.FileMode, which the engine's stat speaks.
_GO_DIRECTORY, _GO_SYMLINK = 1 << 31, 1 << 27


class ImageFacts(NamedTuple):
    """The facts of an image that decide how its containers are made."""

    passwd: str
    group: str
    ssh_config: str
    known_hosts: str
    paths: dict[str, Any]  # path -> the engine's stat, or None where the image has no such path
    folders: dict[str, Any]  # path -> a directory's mode, uid and gid, or None where the image has no such path

    def login_shell(self, runtime_path: str) -> str:
        for shell in (_BASH, _SH):
            if self.paths[shell]:
                return shell
        return f"{runtime_path}/bin/sh"

    def file_in_the_way(self, home: str) -> str | None:
        """Return a path of the image that is a file, and in which an account's files have to lie; None if none is."""
        # The engine replaces the home directory itself; a ~/.ssh that is a file is left alone.
        fine = {posixpath.normpath(home), posixpath.join(home, _USERS_SSH_DIRECTORY)}
        for path in sorted(_folders_below(home) - fine):
            found = self.paths[path]
            if found is not None and not found["mode"] & (_GO_DIRECTORY | _GO_SYMLINK):
                return path
        return None


def image_facts(engine: EngineApi, cluster: str, image_id: str, home: str, paths: set[str]) -> ImageFacts:
    """Return an image's facts, those of `paths` and of a home directory among them.

    They come from this host's cache, or else from a container that is made for it and never started. An image's id is a
    hash of its content, so what was read once holds for good.
    """
    directory = names.ClusterPaths(cluster).image_facts
    cache = directory / _cache_name(image_id)
    paths = paths | {_BASH, _SH, _SSH_DIRECTORY, _PROFILE_DIRECTORY, home}
    paths = paths | {posixpath.join(home, name) for name in _USERS_SSH_PATHS} | _folders_below(home)
    try:
        facts = ImageFacts(**json.loads(cache.read_text("utf-8")))
    except FileNotFoundError:
        known: set[str] = set()
    else:
        if paths <= facts.paths.keys():
            return facts
        known = set(facts.paths)
    facts = _read_facts(engine, cluster, image_id, home, known | paths)
    directory.mkdir(mode=0o700, exist_ok=True)
    with suppress(OSError):  # a full disk: they are read again
        host_state.write_durably(cache, json.dumps(facts._asdict()))
    return facts


def forget_other_images(cluster: str, image_ids: set[str]) -> None:
    """Drop the cached facts of images that this host no longer has."""
    directory = names.ClusterPaths(cluster).image_facts
    if directory.is_dir():
        kept = {_cache_name(image_id) for image_id in image_ids}
        for cache in directory.iterdir():
            if cache.name not in kept:
                cache.unlink()


def _cache_name(image_id: str) -> str:
    # The name has the facts' layout: what an older version has cached lacks some of them.
    return image_id.rpartition(":")[2] + "-3.json"


def _read_facts(engine: EngineApi, cluster: str, image_id: str, home: str, paths: set[str]) -> ImageFacts:
    body = {
        "Image": image_id,
        "Entrypoint": ["never-started"],
        # With the cluster's label and no session's, so that the next run removes one that a crash left.
        "Labels": {**names.NO_LABELS, names.LABEL_CLUSTER: cluster},
        "HostConfig": {"NetworkMode": "none"},
    }
    container_id = engine.create_container(body)
    try:
        stats = {path: engine.path_stat(container_id, path) for path in paths}
        return ImageFacts(
            passwd=_text(engine, container_id, "/etc/passwd"),
            group=_text(engine, container_id, "/etc/group"),
            ssh_config=_text(engine, container_id, _SSH_DIRECTORY + "/ssh_config"),
            known_hosts=_text(engine, container_id, posixpath.join(home, _USERS_KNOWN_HOSTS)),
            paths=stats,
            folders=_folders(engine, container_id, {path: stats[path] for path in _folders_below(home)}),
        )
    finally:
        engine.remove_container(container_id)


def _folders_below(home: str) -> set[str]:
    """Return the paths of the directories in which an account's files lie."""
    home = posixpath.normpath(home)
    parts = home.strip("/").split("/")
    ways = {"/" + "/".join(parts[: number + 1]) for number in range(len(parts))}
    etc = posixpath.dirname(_SSH_DIRECTORY)
    return {etc, _SSH_DIRECTORY, _PROFILE_DIRECTORY, _APPS_PARENT, posixpath.join(home, _USERS_SSH_DIRECTORY), *ways}


def _folders(engine: EngineApi, container_id: str, stats: dict[str, Any]) -> dict[str, Any]:
    """Return the folders of these that are plain directories of the image, or missing there; links are left out."""
    found: dict[str, Any] = {path: None for path, stat_ in stats.items() if stat_ is None}
    for path in sorted(stats.keys() - found.keys()):
        entry = engine.folder_entry(container_id, path) if stats[path]["mode"] & _GO_DIRECTORY else None
        if entry is not None and entry.isdir() and not any(key.startswith(_XATTRS) for key in entry.pax_headers):
            found[path] = (entry.mode, entry.uid, entry.gid)
    return found


def _text(engine: EngineApi, container_id: str, path: str) -> str:
    content = engine.read_file(container_id, path)
    return "" if content is None else content.decode("utf-8", "surrogateescape")


def merged_passwd(passwd: str, user: dict[str, Any], shell: str) -> str:
    """Return the accounts with the user first, so that its uid, too, resolves to its name."""
    line = f"{user['name']}:x:{user['uid']}:{user['gid']}::{user['home']}:{shell}"
    others = [entry for entry in passwd.splitlines() if entry.split(":")[0] != user["name"]]
    return "\n".join([line, *others]) + "\n"


def merged_group(group: str, user: dict[str, Any]) -> str:
    """Return the groups with the terminals' group and one of the user's gid."""
    entries = [line for line in group.splitlines() if line.split(":")[0] != "tty"]
    if str(user["gid"]) not in {[*line.split(":"), "", ""][2] for line in entries}:
        entries = [line for line in entries if line.split(":")[0] != user["name"]]
        entries.append(f"{user['name']}:x:{user['gid']}:")
    entries.append(f"tty:x:{TTY_GID}:")
    return "\n".join(entries) + "\n"


def merged_ssh_config(ssh_config: str) -> str:
    """Return ssh's system-wide client configuration with the session's included first: there the first value counts."""
    return ssh_config if ssh_config.startswith(_INCLUDE) else _INCLUDE + ssh_config


def merged_known_hosts(known_hosts: str, ours: str) -> str:
    """Return an image's known hosts with the session's first; without others of the same names.

    An image that was made of a session's container has the keys of that session.
    """
    hosts = {line.split(" ")[0] for line in ours.splitlines()}
    others = [line for line in known_hosts.splitlines() if line.split(" ")[0] not in hosts]
    return "\n".join([*ours.splitlines(), *others]) + "\n"


def account_tar(
    facts: ImageFacts,
    user: dict[str, Any],
    environment: dict[str, str],
    known_hosts: str,
    mount_targets: list[str],
    links: list[str],
    tmpfs: list[str],
) -> bytes:
    """Return what is unpacked at the container's root before it starts; `known_hosts` are the session's.

    `links` become files, for binds to lie on, and `tmpfs` directories: under `userns-remap` the runtime could not make
    these, since what they lie in may belong to the host's root by then.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add_file(archive, "/etc/passwd", merged_passwd(facts.passwd, user, environment["SHELL"]))
        _add_file(archive, "/etc/group", merged_group(facts.group, user))
        # A directory that exists must not be named: the engine would give it our mode, or replace a link by it.
        if not facts.paths[_SSH_DIRECTORY]:
            _add_directory(archive, _SSH_DIRECTORY, 0o755, 0, 0)
        _add_file(archive, _SSH_DIRECTORY + "/ssh_config", merged_ssh_config(facts.ssh_config))
        if facts.paths[_PROFILE_DIRECTORY]:
            # Most images' /etc/profile sets PATH anew, which would hide the runtime's ssh from a login shell.
            profile = f"PATH={shlex.quote(environment['PATH'])}\nexport PATH\n"
            _add_file(archive, _PROFILE_DIRECTORY + "/muster.sh", profile)
        home = posixpath.normpath(user["home"])
        if home != "/" and not any(home == path or home.startswith(path.rstrip("/") + "/") for path in mount_targets):
            found = facts.paths[user["home"]]
            is_directory = found is not None and bool(found["mode"] & _GO_DIRECTORY)
            if found is not None and found["mode"] & _GO_SYMLINK:
                home = found["linkTarget"]
            mode = stat.S_IMODE(found["mode"]) if is_directory else 0o755
            _add_directory(archive, home, mode, user["uid"], user["gid"])
            ssh_directory = posixpath.join(posixpath.normpath(user["home"]), _USERS_SSH_DIRECTORY)
            if not any(path == ssh_directory or path.startswith(ssh_directory + "/") for path in mount_targets):
                _add_users_ssh_files(archive, facts, user, home, known_hosts)
        for path in tmpfs:
            _add_directory(archive, path, 0o700, user["uid"], user["gid"])
        for link in links:
            _add_file(archive, link, "")
    return buffer.getvalue()


def _add_users_ssh_files(
    archive: tarfile.TarFile, facts: ImageFacts, user: dict[str, Any], home: str, known_hosts: str
) -> None:
    """Add ~/.ssh as far as the image does not have it, for clients such as paramiko that know no other place.

    The key stays where it is in memory: no image made of the container may hold it. Users add to the other files.
    """
    found = {name: facts.paths[posixpath.join(user["home"], name)] for name in _USERS_SSH_PATHS}
    directory = found[_USERS_SSH_DIRECTORY]
    if directory is None:
        _add_directory(archive, posixpath.join(home, _USERS_SSH_DIRECTORY), 0o700, user["uid"], user["gid"])
    elif not directory["mode"] & _GO_DIRECTORY:
        return
    if found[_USERS_CONFIG] is None:
        _add_file(archive, posixpath.join(home, _USERS_CONFIG), _INCLUDE, user)
    if not any(found[name] for name in _USERS_KEYS):
        for name in _USERS_KEYS:
            target = posixpath.join(names.KEYS_IN_CONTAINER, posixpath.basename(name))
            _add_link(archive, posixpath.join(home, name), target)
    known_hosts = merged_known_hosts(facts.known_hosts, known_hosts)
    _add_file(archive, posixpath.join(home, _USERS_KNOWN_HOSTS), known_hosts, user)


def _add_file(archive: tarfile.TarFile, path: str, content: str, owner: dict[str, Any] | None = None) -> None:
    data = content.encode("utf-8", "surrogateescape")
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.size = len(data)
    entry.mode = 0o644
    if owner is not None:
        entry.uid, entry.gid = owner["uid"], owner["gid"]
    archive.addfile(entry, io.BytesIO(data))


def _add_link(archive: tarfile.TarFile, path: str, target: str) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type = tarfile.SYMTYPE
    entry.linkname = target
    archive.addfile(entry)


def _add_directory(archive: tarfile.TarFile, path: str, mode: int, uid: int, gid: int) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type = tarfile.DIRTYPE
    entry.mode = mode
    entry.uid, entry.gid = uid, gid
    archive.addfile(entry)
