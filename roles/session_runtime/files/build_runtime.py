#!/usr/bin/env python3
"""Build the session runtime: openssh and busybox with their own C library, to be mounted into any image.

`versions PATH SCRIPTS BUILDER` prints JSON: the text of VERSION of the runtime that is `present`, and of the one
that would be built from the packages that apt offers now (`offered`). Each may be null; without `offered` it then
fails. `build PATH SCRIPTS BUILDER` builds that version beside PATH and prints its path. The module versioned_tree
then switches over to it.

SCRIPTS are the texts of the tree's own programs by their paths, as JSON in base64. BUILDER is a hash of this program,
so that a changed one builds again. Nothing is installed on the host. Written for Python 3.9.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from muster_agent.versioned_trees import new_tree, version_in

PROGRAMS = ["openssh-server", "openssh-client", "openssh-sftp-server", "busybox-static"]
TOOLS = ["patchelf"]
# Only dependencies on libraries are followed, without PAM's modules, which sshd uses only if PAM is on.
LIBRARY = re.compile(r"^(lib|zlib)(?!pam-)")

LOADER = re.compile(r"^ld(-linux[^.]*|64)?\.so\.\d+$")

# A file's path in the tree, by its path in the packages. A file that a release lacks is left out unless it is required.
BINARIES = {
    "bin/busybox": ("bin/busybox", True),
    "usr/sbin/sshd": ("sbin/sshd", True),
    "usr/bin/ssh": ("bin/ssh", True),
    "usr/bin/ssh-keygen": ("bin/ssh-keygen", True),
    "usr/bin/ssh-keyscan": ("bin/ssh-keyscan", True),
    "usr/bin/ssh-add": ("bin/ssh-add", True),
    "usr/bin/ssh-agent": ("bin/ssh-agent", True),
    "usr/bin/scp": ("libexec/scp", True),
    "usr/bin/sftp": ("libexec/sftp", True),
    "usr/lib/openssh/sftp-server": ("libexec/sftp-server", True),
    "usr/lib/openssh/sshd-session": ("libexec/sshd-session", False),
    "usr/lib/openssh/sshd-auth": ("libexec/sshd-auth", False),
}
# glibc loads them by name, so no ELF header lists them. From 2.34 on they are built in.
NAME_SERVICE = ["libnss_files.so.2", "libnss_dns.so.2"]
# Programs that start others by the distribution's path get a wrapper with the runtime's path.
WRAPPED = ["scp", "sftp"]
# Useless to an unprivileged user, or installers would mistake the image for another distribution because of them.
UNWANTED_APPLETS = {
    *("busybox", "dpkg", "dpkg-deb", "rpm", "rpm2cpio"),
    *("halt", "init", "linuxrc", "poweroff", "reboot", "run-init", "switch_root", "pivot_root"),
}


class RuntimeBuildError(Exception):
    """The session runtime could not be built."""


def output_of(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        last_words = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise RuntimeBuildError("{} failed: {}".format(" ".join(command[:3]), last_words[-1]))
    return done.stdout.decode(errors="replace")


def candidates() -> dict[str, dict[str, str]]:
    """Return the stanza, as a dict, of each package that may be needed, in the version that apt would install."""
    try:
        # Two calls for all packages, since each call reads apt's whole cache.
        closure = output_of(
            "apt-cache", "depends", "--recurse", "--important", "--no-conflicts", "--no-breaks", "--no-replaces",
            *PROGRAMS,
        ).splitlines()  # fmt: skip
        libraries = {line for line in closure if LIBRARY.match(line) and ":" not in line}
        text = output_of("apt-cache", "show", "--no-all-versions", *sorted(libraries.union(PROGRAMS, TOOLS)))
    except RuntimeBuildError as error:
        raise RuntimeBuildError(f"{error}; run `apt-get update` and check /etc/apt/sources.list") from error
    stanzas: dict[str, dict[str, str]] = {}
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", block, re.MULTILINE))
        if "Package" in fields:
            stanzas.setdefault(fields["Package"], fields)
    missing = sorted(set(PROGRAMS + TOOLS) - set(stanzas))
    if missing:
        raise RuntimeBuildError(
            "apt does not offer {}; run `apt-get update` and check /etc/apt/sources.list".format(", ".join(missing))
        )
    return stanzas


def packages_with_libraries() -> dict[str, str]:
    """Return the versions by package name, for the programs and the libraries that they need."""
    offered = candidates()
    chosen, desired = {}, PROGRAMS + TOOLS
    while desired:
        name = desired.pop()
        if name in offered and name not in chosen:
            chosen[name] = offered[name]["Version"]
            # The tools run on the host, with its libraries. Only programs in the tree need libraries in the tree.
            if name not in TOOLS:
                desired += [dependency for dependency in dependency_names(offered[name]) if LIBRARY.match(dependency)]
    return chosen


def dependency_names(fields: dict[str, str]) -> list[str]:
    depends = ", ".join(fields[field] for field in ("Pre-Depends", "Depends") if field in fields)
    return re.findall(r"(?:^|, |\| )([a-z0-9][a-z0-9+.-]+)", depends)


def version_of(packages: dict[str, str], path: Path, scripts: dict[str, str], builder: str) -> str:
    """Return the text of VERSION; its first line is sshd's version, and a hash of all that goes into the tree."""
    listing = "".join(f"{name}={packages[name]}\n" for name in sorted(packages))
    architecture = output_of("dpkg", "--print-architecture")
    inputs = hashlib.sha256()
    for part in (json.dumps(scripts, sort_keys=True), builder, str(path), architecture, listing):
        inputs.update(hashlib.sha256(part.encode()).digest())
    upstream = re.sub(r"^\d+:|-[^-]*$", "", packages["openssh-server"])
    return f"openssh-{upstream}-{inputs.hexdigest()[:12]}\n{listing}"


def unpack(packages: dict[str, str], directory: Path) -> Path:
    downloads = directory / "downloads"
    downloads.mkdir()
    # apt's sandbox user cannot write here. Downloads are checked against signed lists without it too.
    output_of(
        "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download",
        *(f"{name}={version}" for name, version in sorted(packages.items())),
        cwd=downloads,
    )  # fmt: skip
    root = directory / "root"
    root.mkdir()
    # Each package in a directory of its own: /lib is a link in some releases' packages and a directory in others.
    for package in sorted(downloads.glob("*.deb")):
        output_of("dpkg-deb", "--extract", str(package), str(root / package.name.split("_")[0]))
    return root


def find(root: Path, relative: str) -> Path | None:
    """Return a file by its path in the packages, in releases with and without / merged into /usr."""
    bare = re.sub(r"^usr/", "", relative)
    for candidate in (bare, "usr/" + bare):
        for path in sorted(root.glob("*/" + candidate)):
            if path.is_file():
                return path
    return None


def shared_libraries(root: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.so*")):
        if path.is_file():
            found.setdefault(path.name, path.resolve())
    return found


def build_tree(root: Path, tree: Path, path: Path, scripts: dict[str, str]) -> None:
    """Copy the needed files from the unpacked packages into `tree`, which containers will find at `path`."""
    for folder in ("bin", "sbin", "lib", "libexec", "libexec/slurm"):
        (tree / folder).mkdir()
    patchelf = str(find(root, "usr/bin/patchelf"))
    dynamic = [binary for binary in copy_binaries(root, tree) if needed_by(patchelf, binary)]
    libraries = copy_libraries(patchelf, root, tree, dynamic)
    loader = next(library for library in libraries if LOADER.match(library.name))

    # RPATH, not RUNPATH, since it comes before LD_LIBRARY_PATH, which many images set.
    for binary in dynamic:
        output_of(patchelf, "--set-interpreter", f"{path}/lib/{loader.name}", str(binary))
        output_of(patchelf, "--force-rpath", "--set-rpath", f"{path}/lib", str(binary))
    for library in libraries:
        # The loader and the C library need no other library, and patchelf has broken them before.
        if library != loader and not library.name.startswith("libc.so."):
            output_of(patchelf, "--force-rpath", "--set-rpath", f"{path}/lib", str(library))

    for name in WRAPPED:
        script(tree / "bin" / name, f'#!{path}/bin/busybox sh\nexec {path}/libexec/{name} -S {path}/bin/ssh "$@"\n')
    for name, text in scripts.items():
        script(tree / name, text.replace("@RUNTIME@", str(path)))
    (tree / "libexec/slurm/srun").symlink_to("../../bin/muster-run")
    for applet in output_of(str(tree / "bin/busybox"), "--list").split():
        link = tree / "bin" / applet
        if applet not in UNWANTED_APPLETS and not link.exists():
            link.symlink_to("busybox")


def copy_binaries(root: Path, tree: Path) -> list[Path]:
    copies = []
    for source, (target, required) in BINARIES.items():
        file = find(root, source)
        if file is not None:
            copies.append(Path(shutil.copy(str(file), str(tree / target))))
        elif required:
            raise RuntimeBuildError(f"the distribution's packages hold no {source}")
    return copies


def copy_libraries(patchelf: str, root: Path, tree: Path, binaries: list[Path]) -> list[Path]:
    """Copy every library that the binaries need, and what those need, the loader included."""
    available = shared_libraries(root)
    desired = [name for name in NAME_SERVICE if name in available]
    for binary in binaries:
        desired += needed_by(patchelf, binary)
    copies: dict[str, Path] = {}
    while desired:
        name = desired.pop()
        if name in copies:
            continue
        if name not in available:
            raise RuntimeBuildError(f"no package holds {name}, which the bundle needs")
        copies[name] = Path(shutil.copy(str(available[name]), str(tree / "lib" / name)))
        copies[name].chmod(0o755 if LOADER.match(name) else 0o644)
        desired += needed_by(patchelf, copies[name])
    return list(copies.values())


def needed_by(patchelf: str, file: Path) -> list[str]:
    try:
        return output_of(patchelf, "--print-needed", str(file)).split()
    except RuntimeBuildError:
        return []  # statically linked: it has no dynamic section to print


def script(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


def build(path: Path, scripts: dict[str, str], builder: str) -> Path:
    packages = packages_with_libraries()
    version = version_of(packages, path, scripts, builder)

    def fill(work: Path) -> Path:
        tree = work / "tree"
        tree.mkdir()
        build_tree(unpack(packages, work), tree, path, scripts)
        (tree / "VERSION").write_text(version)
        (tree / "VERSION").chmod(0o644)
        # Set the directories' modes whatever the umask; the files in them have theirs.
        for directory in (tree, *(path for path in tree.rglob("*") if path.is_dir())):
            directory.chmod(0o755)
        return tree

    return new_tree(path, fill)


def versions(path: Path, scripts: dict[str, str], builder: str) -> None:
    """Print the present and the offered version. Raises RuntimeBuildError after that if apt offers none."""
    answer: dict[str, str | None] = {"present": version_in(path), "offered": None}
    try:
        answer["offered"] = version_of(packages_with_libraries(), path, scripts, builder)
    finally:
        sys.stdout.write(json.dumps(answer))


def main() -> None:
    command, path, scripts, builder = (
        sys.argv[1],
        Path(sys.argv[2]),
        json.loads(base64.b64decode(sys.argv[3])),
        sys.argv[4],
    )
    try:
        if command == "versions":
            versions(path, scripts, builder)
        else:
            sys.stdout.write(str(build(path, scripts, builder)))
    except RuntimeBuildError as error:
        sys.exit(f"session runtime: {error}")


if __name__ == "__main__":
    main()
