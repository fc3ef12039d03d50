"""Writing files whole or not at all, checking first that they can be written, and reading regular files."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any
from uuid import uuid4

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None

Pathlike = str | os.PathLike[str]

#: Names of new files until they are whole. Their writers lock them, so one without a lock is left over.
_SCRATCH = re.compile(r"\.mcfsim-[0-9a-f]{32}\.partial")

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class OutputError(OSError, ValueError):
    """An output file that cannot be written, or should not be."""


def destination(path: Pathlike) -> Path:
    """Return the file that a path leads to through all links; it need not exist yet.

    Raises
    ------
    OutputError
        If the path is empty; if the file exists and is not regular, or is read-only (for everybody, or for
        this process); or if its folder does not exist.
    """
    if not os.fspath(path):  # which would lead to the working folder
        raise OutputError("cannot write to '': the path of the file is empty")
    try:
        target = Path(os.path.realpath(path))
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    except (OSError, ValueError) as problem:  # a loop of links; a NUL in the name
        raise _refusal(path, getattr(problem, "strerror", None) or str(problem)) from problem
    if mode is not None and not stat.S_ISREG(mode):
        raise _refusal(path, f"it is {_kind(mode)}, not a regular file")
    # An administrator could write to it all the same, but whoever made it read-only wants it kept.
    if mode is not None and not (mode & 0o222 and os.access(target, os.W_OK)):
        raise _refusal(path, "it is read-only")
    if not target.parent.is_dir():
        raise _refusal(path, f"there is no folder {target.parent}")
    return target


def folder_of(path: Pathlike) -> Path:
    """Return the path of a folder; raise OutputError if it is empty, which means the working folder."""
    if not os.fspath(path):
        raise OutputError("cannot write to '': the path of the folder is empty")
    return Path(path)


def check_outputs(outputs: Mapping[str, Pathlike | None]) -> None:
    """Refuse outputs that cannot be written, or that share a file, before any work is done for them.

    Parameters
    ----------
    outputs : mapping of str to path or None
        The path of each output by the caller's name for it; None is left out.

    Raises
    ------
    OutputError
        As for `destination`, or if no file can be created in the folder.
    """
    found: dict[object, str] = {}
    folders: set[Path] = set()
    for label, path in outputs.items():
        if path is None:
            continue
        target = destination(path)
        for key in {target, identity(target)} - {None}:  # hard links have different names
            if key in found:
                raise OutputError(f"{found[key]} and {label} are one and the same file, {target}: name two")
            found[key] = label
        if target.parent not in folders:
            folders.add(target.parent)
            _try_out(target.parent, path)


def identity(path: Pathlike) -> tuple[int, int] | None:
    """Return device and inode of a file, which all its names share; None if it does not exist."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):  # also a loop of links, or a NUL in the name
        return None
    return about.st_dev, about.st_ino


@contextmanager
def telling(path: Pathlike) -> Iterator[None]:
    """Turn a system error that names no file into an `OutputError` that names the output."""
    try:
        yield
    except OutputError:
        raise
    except OSError as problem:
        if problem.filename is not None:
            raise
        raise _refusal(path, problem.strerror or str(problem)) from problem


class ToldFile(io.FileIO):
    """A writable file whose errors name the output that cannot be written.

    After an error it accepts what is still buffered but writes nothing, so closing raises no second error.

    Parameters
    ----------
    file : path or int
        A path, or the descriptor of an open file.
    mode : str
        As for `open`.
    label : path
        The name that errors give it.
    """

    def __init__(self, file: Pathlike | int, mode: str, label: Pathlike, *, closefd: bool = True) -> None:
        super().__init__(file, mode, closefd=closefd)
        self.label, self.failed = label, False

    def write(self, data: Any) -> int:
        """Write bytes, and return how many were accepted."""
        if self.failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as problem:
            self.failed = True
            raise _refusal(self.label, problem.strerror or str(problem)) from problem


@contextmanager
def replacing(path: Pathlike, *, exclusive: bool = False) -> Iterator[IO[bytes]]:
    """Open a new file that replaces the old one atomically when the block ends without an exception.

    A process killed at any instant leaves either the old file or the new one. Links to the old file stay and
    lead to the new one, which has the same permissions. Files that killed processes left in the same folder
    are removed.

    Parameters
    ----------
    path : path
        The file to replace.
    exclusive : bool, optional
        Whether to refuse if the file exists already. Of several processes, only one succeeds.

    Raises
    ------
    OutputError
        As for `destination`.
    FileExistsError
        If `exclusive` and the file exists.
    """
    with _beside(path) as (target, scratch, file):
        yield file
        if file.raw.failed:  # the writer has suppressed the error
            raise _refusal(path, "it is not whole")
        file.flush()
        os.fsync(file.fileno())
        if fcntl is None:
            file.close()  # Windows cannot move an open file
        _put(scratch, target, exclusive=exclusive)


@contextmanager
def replacing_by_name(path: Pathlike, *, exclusive: bool = False) -> Iterator[Path]:
    """Yield a name for a library to write a new file to, which then replaces the old one as with `replacing`.

    Raises
    ------
    OutputError
        As for `destination`.
    FileNotFoundError
        If no file was written under that name.
    FileExistsError
        If `exclusive` and the file exists.
    """
    # The library may create a file of its own under the name; the empty one next to it keeps the lock.
    with _beside(path) as (target, scratch, file):
        named = _named(scratch)
        try:
            yield named
            with open(named, "rb+") as written:
                if hasattr(os, "fchmod"):
                    os.fchmod(written.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
                os.fsync(written.fileno())
            _put(named, target, exclusive=exclusive)
        finally:
            named.unlink(missing_ok=True)


def write_text(path: Pathlike, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all, as `replacing` does."""
    with replacing(path) as file:
        file.write(text.encode())


def open_regular(path: Pathlike) -> IO[bytes]:
    """Open a regular file for reading; refuse pipes, devices and the like, which might never end.

    Raises
    ------
    ValueError
        If it is no regular file.
    OSError
        If it does not exist or cannot be read.
    """
    _refuse_irregular(path, os.stat(path).st_mode)
    # If a pipe has taken its name meanwhile, a blocking open would wait for a writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _refuse_irregular(path, os.fstat(handle).st_mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_text(path: Pathlike, limit: int) -> str:
    """Return the text of a UTF-8 file of at most `limit` bytes.

    Raises
    ------
    ValueError
        If it is longer, not UTF-8 text, or no regular file.
    OSError
        If it does not exist or cannot be read.
    """
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{os.fspath(path)} has more than {limit:,} bytes")
    return data.decode()


@contextmanager
def _beside(path: Pathlike) -> Iterator[tuple[Path, Path, io.BufferedWriter[ToldFile]]]:
    """Yield the target of a path, and the name and file of a new one beside it with its permissions."""
    target = destination(path)
    _remove_stranded(target.parent)
    with telling(path), _scratch(target.parent, path) as (scratch, file):
        _take_permissions(file, target)
        yield target, scratch, file


@contextmanager
def _scratch(folder: Path, label: Pathlike) -> Iterator[tuple[Path, io.BufferedWriter[ToldFile]]]:
    """Create a file in a folder, locked while open, and remove it at the end unless it was renamed."""
    while True:
        scratch = folder / f".mcfsim-{uuid4().hex}.partial"
        try:
            file = io.BufferedWriter(ToldFile(scratch, "xb", label))
        except OSError as problem:  # which names a file that nobody asked for
            raise _refusal(label, problem.strerror or str(problem)) from problem
        # Another process that removes leftover files may have come between the two calls.
        if _locked(file) is not False and scratch.exists():
            break
        file.close()
    try:
        yield scratch, file
    finally:
        try:
            file.close()
        finally:
            scratch.unlink(missing_ok=True)


def _named(scratch: Path) -> Path:
    """Return the name, next to a new file, that `replacing_by_name` yields."""
    return scratch.with_suffix(".named")


def _try_out(folder: Path, path: Pathlike) -> None:
    """Refuse a folder in which no file can be created."""
    with telling(path), _scratch(folder, path):
        pass


def _put(scratch: Path, target: Path, *, exclusive: bool) -> None:
    """Give a file its final name; if exclusive, raise FileExistsError if that is taken."""
    if exclusive:
        try:
            os.link(scratch, target)
            return
        except FileExistsError:
            raise
        except OSError:  # no hard links here: another process may still get in between
            if target.exists():
                raise FileExistsError(f"{target} exists already") from None
    os.replace(scratch, target)


def _remove_stranded(folder: Path) -> None:
    """Remove unfinished files whose writers are dead."""
    with suppress(OSError), os.scandir(folder) as entries:  # an unreadable folder may still be written to
        for scratch in [entry.path for entry in entries if _SCRATCH.fullmatch(entry.name)]:
            with suppress(OSError), open_regular(scratch) as file:
                if fcntl is None or _locked(file):
                    _named(Path(scratch)).unlink(missing_ok=True)
                    os.unlink(scratch)


def _locked(file: IO[bytes]) -> bool | None:
    """Lock a file; return False if another process holds the lock, None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems
        return None
    return True


def _refuse_irregular(path: Pathlike, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ValueError(f"{os.fspath(path)} is {_kind(mode)}, not a regular file")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def _take_permissions(file: IO[bytes], target: Path) -> None:
    """Give a new file the owner and permissions of the one that it replaces, as far as allowed."""
    try:
        old = target.stat()
    except FileNotFoundError:
        return
    if hasattr(os, "fchown"):
        new = os.fstat(file.fileno())
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            with suppress(OSError):
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
        os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))


def _refusal(path: Pathlike, why: str) -> OutputError:
    return OutputError(f"cannot write {os.fspath(path)}: {why}")


# -- room on a disk ---------------------------------------------------------------------------------------
#: The maximum number of bytes that a file has beyond its numbers.
_HEADER = 1 << 16


def check_space(path: Pathlike, size: int) -> None:
    """Refuse to write where the disk has no room for a new file of `size` bytes.

    An old file takes up room, too: it stays until the new one is whole.

    Parameters
    ----------
    path : path
        The file to be written.
    size : int
        Bytes of the numbers to be written.

    Raises
    ------
    OutputError
        If there is less room, or as for `destination`.
    """
    free = shutil.disk_usage(destination(path).parent).free
    if size + _HEADER > free:
        takes, left = _in_units(size), _in_units(free)
        raise OutputError(f"cannot write {os.fspath(path)}: it takes {takes}, and the disk has {left} left")


def _in_units(size: int) -> str:
    """Return a number of bytes as text, in GB, MB, kB or bytes."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if size >= 0.9995 * 10**power:  # three digits round this up to 1
            return f"{size / 10**power:.3g} {unit}"
    return f"{size} bytes"
