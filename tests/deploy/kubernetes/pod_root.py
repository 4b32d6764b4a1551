"""A container's root file system, laid for the process that this then becomes.

Runs as root in namespaces of its own (mounts, processes, host name); reads what to do as JSON.
Nothing of the host can be written from there, and of its /etc, /tmp and /var nothing is seen.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_OWN = {"etc", "home", "proc", "root", "run", "tmp", "var"}
# What the loader of programs, and whoever asks for a name, read.
_ETC = ("ld.so.cache", "ld.so.conf", "nsswitch.conf", "ssl", "localtime", "alternatives")


def main() -> None:
    given = json.loads(sys.argv[1])
    root = Path(given["root"])
    _mount("--make-rprivate", "/")
    _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", root)
    for entry in Path("/").iterdir():
        lay(entry, root / entry.name)
    lay_etc(root / "etc", given["hosts"])
    _mount("-t", "proc", "proc", root / "proc")
    # What a pod gets.
    _mount("-t", "tmpfs", "-o", "size=64m,mode=1777", "tmpfs", root / "dev" / "shm")
    for volume in given["volumes"]:
        bind(volume["source"], root / volume["path"].lstrip("/"), read_only=volume["readOnly"])
    # The program may lie in what is hidden above.
    for path in given["needed"]:
        if not (point := root / path.lstrip("/")).exists():
            bind(path, point, read_only=True)
    _mount("-o", "remount,ro", root)
    socket.sethostname(given["hostname"])
    os.chroot(root)
    os.chdir("/")
    become(given)


def lay(entry: Path, point: Path) -> None:
    """Show what the host has at its root, or an empty folder in its place."""
    if entry.name in _OWN:
        point.mkdir()
    elif entry.is_symlink():
        point.symlink_to(entry.readlink())
    elif entry.is_dir():
        point.mkdir()
        _mount("--rbind", entry, point)
        if entry.name not in {"dev", "sys"}:
            _mount("-o", "remount,bind,ro", point)


def lay_etc(folder: Path, hosts: str) -> None:
    for name in _ETC:
        if (found := Path("/etc") / name).is_dir():
            shutil.copytree(found, folder / name, symlinks=True)
        elif found.exists():
            shutil.copy(found, folder / name)
    (folder / "hosts").write_text(hosts)


def bind(source: str, point: Path, *, read_only: bool) -> None:
    point.mkdir(parents=True, exist_ok=True)
    _mount("--bind", source, point)
    if read_only:
        _mount("-o", "remount,bind,ro", point)


def become(given: dict[str, Any]) -> None:
    user, group = str(given["user"]), str(given["group"])
    capabilities = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    ids = ["--reuid", user, "--regid", user, "--groups", group]
    # Whose parent ends: a change of the user makes the kernel forget what unshare asked of it.
    end = ["--pdeathsig", "KILL"]
    command = ["setpriv", *ids, *capabilities, *end, *given["command"]]
    os.execvpe(command[0], command, given["env"])


def _mount(*arguments: object) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
