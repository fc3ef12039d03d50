"""Places in which no file may be written, disks that are full, and what is in a folder."""

import os
import resource
import socket
import stat
from contextlib import contextmanager

import pytest


def no_file(kind, path):
    """Make something of a kind in a place where no file may be written."""
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        made = socket.socket(socket.AF_UNIX)
        made.bind(os.path.relpath(path))  # a long path is no address
        made.close()
    elif kind == "device":
        # One of our own: the system's must not be at the mercy of what is tested.
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only an administrator makes devices")
    elif kind == "link to a device":
        no_file("device", path.with_name("target"))
        path.symlink_to("target")
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "read-only":
        path.write_text("old")
        path.chmod(0o444)
    elif kind == "link to read-only":
        no_file("read-only", path.with_name("target"))
        path.symlink_to("target")
    elif kind == "link into no folder":
        path.symlink_to(path.parent / "none" / "file")


KINDS = (
    *("folder", "pipe", "socket", "device", "link to a device", "link to itself"),
    *("read-only", "link to read-only", "link into no folder"),
)


@contextmanager
def no_room(size):
    """Let files have no more than so many bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:  # before pytest writes, which may be to a file
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def look(folder):
    """Return what is below a folder: kinds and permissions, links, bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        link = os.readlink(path) if path.is_symlink() else None
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else None
        found[str(path.relative_to(folder))] = about.st_mode, link, content
    return found
