"""Jobs of sweeps, in a module that every worker imports; and what they leave in files."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from mcfsim.storage.sweeps.journal import Journal
from mcfsim.storage.sweeps.sweep import Job

#: More than a slow machine takes for anything here.
PATIENCE = 60.0


def summed(start, stop):
    return {"sum": sum(range(start, stop)), "share": start / 7, "ends": (start, stop), 3: float("inf")}


def expected(job):
    return [json.loads(json.dumps(summed(*unit))) for unit in job.units]


def done(*jobs):
    """Return jobs with their results, as a sweep yields them."""
    return [(job, expected(job)) for job in jobs]


def tens(stop, work=summed, key="tens", label="by tens", validate=None):
    return Job(key, label, work, [(start, min(start + 10, stop)) for start in range(0, stop, 10)], validate)


JOBS = [tens(95), Job("none", "no units", summed, []), tens(40, key="b"), Job("one", "one", summed, [(7, 8)])]


def note(file, text):
    """Add a line, whole even if others write."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{text}\n".encode())
    os.close(handle)


def lines(file):
    return file.read_text().split("\n")[:-1] if file.exists() else []


def slowly_noted(file, start, stop):
    time.sleep(0.01)
    note(file, start)
    return summed(start, stop)


def slowly(start, stop):
    time.sleep(0.02)
    return summed(start, stop)


def deadly(folder, start, stop):
    """Kill the process that tries range 30 first."""
    note(folder / "begun", start)
    if start == 30 and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return summed(start, stop)


def poisoned(start, stop):
    if start == 30:
        time.sleep(0.5)  # so that what came before has been delivered
        os.kill(os.getpid(), signal.SIGKILL)
    return summed(start, stop)


def ends(start, stop):
    if start == 30:
        sys.exit(2)
    return summed(start, stop)


def blocked(file, start, stop):
    if start >= 20:
        note(file, os.getpid())
        threading.Event().wait()
    return summed(start, stop)


def wrong(start, stop):
    if start == 30:
        raise OverflowError("the number 37 is too large")
    return summed(start, stop)


def wrong_sum(start, stop):
    return {"sum": -1 if start == 30 else sum(range(start, stop))}


def sums_to(start, stop, result):
    if result["sum"] != sum(range(start, stop)):
        raise ValueError(f"{result['sum']} is not the sum")


class CannotReturn(Exception):
    """Pickled without complaint; the other side cannot make it again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def cannot_return(start, stop):
    raise CannotReturn("one", "two")


class Remembering:
    """Work that knows how often it was called, where it is, and who is told of Ctrl-C there."""

    calls = 0

    def __call__(self, start, stop):
        self.calls += 1
        ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        return {"worker": os.getpid(), "calls": self.calls, "ignored": ignored}


def until(condition, pause=0.01):
    end = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(pause)
    return result


def gone(pid):
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def recorded(folder, key):
    """Return the ranges in a journal that is in use: the file is locked for others, but not for a copy."""
    for suffix in ("", "-wal"):
        (folder / f"copy{suffix}").write_bytes((folder / f"journal{suffix}").read_bytes())
    with Journal(folder / "copy") as copy:
        return list(copy.results(key))
