"""Workers that run the units of a sweep: this process, threads, other processes, or a Dask cluster."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import lru_cache
from logging import CRITICAL, getLogger
from multiprocessing import get_context
from multiprocessing.connection import Connection
from platform import node
from threading import Thread
from typing import Any, Literal

from mcfsim.storage.sweeps.installed import DIGEST, versions

#: Version and digest of this package, which must be the same wherever results are computed.
SOURCE = (versions()["mcfsim"], DIGEST)

Work = Callable[[int, int], Any]


class Workers(ABC):
    """Workers that evaluate units and return futures of their results as JSON text.

    Attributes
    ----------
    room : int
        How many units to submit at once, so that no worker waits.
    lost : tuple of exception types
        What a unit's future raises if its worker died.
    cut_off : tuple of exception types
        What the future raises if all workers are permanently out of reach.
    cut_off_text : str
        The reason in words, for errors.
    """

    room = 1
    lost: tuple[type[Exception], ...] = ()
    cut_off: tuple[type[Exception], ...] = ()
    cut_off_text = ""

    def pack(self, work: Work) -> Any:
        """Return the work in the form that `submit` takes, here unchanged; pass on any error in pickling."""
        return work

    @abstractmethod
    def submit(self, packed: Any, start: int, stop: int) -> Any:
        """Start a unit and return its future, which has ``result`` and ``add_done_callback``."""

    def cancel(self, futures: Iterable[Any]) -> None:
        """Drop the units that have not begun."""
        for future in futures:
            future.cancel()

    @abstractmethod
    def close(self, *, abandon: bool) -> None:
        """End the workers when they have finished, or, to abandon the sweep, as soon as possible."""


def open_workers(count: int, kind: Literal["threads", "processes"], dask: str | None) -> Workers:
    """Return the workers that a sweep asks for."""
    if dask is not None:
        return Dask(dask)
    if count == 1:
        return Here()
    return Threads(count) if kind == "threads" else Processes(count)


class Here(Workers):
    """No extra workers: a unit is evaluated when it is submitted."""

    def submit(self, packed: Work, start: int, stop: int) -> Future[str]:
        """Evaluate a unit."""
        future: Future[str] = Future()
        try:
            future.set_result(evaluate(packed, start, stop))
        except Exception as problem:
            future.set_exception(problem)
        return future

    def close(self, *, abandon: bool) -> None:
        """Do nothing."""


class Threads(Workers):
    """Threads of this process. A unit that has begun is finished even when the sweep is abandoned."""

    def __init__(self, count: int) -> None:
        self.room = 2 * count
        self._pool = ThreadPoolExecutor(count)

    def submit(self, packed: Work, start: int, stop: int) -> Future[str]:
        """Begin a unit."""
        return self._pool.submit(evaluate, packed, start, stop)

    def close(self, *, abandon: bool) -> None:
        """Wait for the units that have begun."""
        self._pool.shutdown(cancel_futures=abandon)


class Processes(Workers):
    """Spawned processes; a fork of a process with threads may hang.

    When one dies, all running units are lost with it, and the next submission starts new processes.
    """

    lost = (BrokenProcessPool,)

    def __init__(self, count: int) -> None:
        self.room = 8 * count  # enough to keep them busy while this process does something else
        self._count = count
        self._start()

    def pack(self, work: Work) -> bytes:
        """Pickle the work."""
        return _pickled(work)

    def submit(self, packed: bytes, start: int, stop: int) -> Future[str]:
        """Begin a unit."""
        self._drop()
        try:
            return self._pool.submit(evaluate_pickled, SOURCE, packed, start, stop)
        except BrokenProcessPool:
            self.close(abandon=True)
            self._start()
            return self._pool.submit(evaluate_pickled, SOURCE, packed, start, stop)

    def cancel(self, futures: Iterable[Future[str]]) -> None:
        """Drop the units that have not begun, once the processes are known to live on.

        A pool fails when its processes end while it still holds cancelled futures.
        """
        self._dropped += futures

    def close(self, *, abandon: bool) -> None:
        """Wait for the units that have begun, or kill the processes that run them."""
        if abandon:
            self._alive.close()
        else:
            self._drop()
        self._pool.shutdown(cancel_futures=abandon)
        self._alive.close()
        self._watched.close()

    def _drop(self) -> None:
        while self._dropped:
            self._dropped.pop().cancel()

    def _start(self) -> None:
        self._dropped: list[Future[str]] = []
        context = get_context("spawn")
        self._watched, self._alive = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(self._count, context, _live_with, (self._watched,))


class Dask(Workers):
    """The workers of a Dask cluster, which may come and go. Dask restarts a lost unit elsewhere."""

    #: Enough for a large cluster; more would only load the scheduler.
    room = 1000

    def __init__(self, address: str) -> None:
        try:
            from distributed import CancelledError, Client, KilledWorker
            from distributed.comm import CommClosedError
        except ImportError as missing:
            raise ImportError("dask needs the package distributed: pip install 'mcfsim[dask]'") from missing
        refusal = ""
        try:
            self._client = Client(address, set_as_default=False)
        except (OSError, ValueError) as problem:
            refusal = str(problem)
        if refusal:
            # The remains of the client, if collected while the next one is made, would hang it.
            gc.collect()
            raise ValueError(f"no Dask scheduler can be reached at {address!r}: {refusal}")
        self.lost, self.cut_off = (KilledWorker,), (CancelledError, CommClosedError)
        self.cut_off_text = f"the Dask scheduler at {address} was lost"
        try:
            self._compare()
        except BaseException:
            self.close(abandon=True)
            raise

    def _compare(self) -> None:
        """Refuse workers that run another mcfsim; one that joins later refuses its first unit itself."""
        for address, found in self._client.run(source_here, on_error="return").items():
            if found != SOURCE:
                raise ValueError(f"the Dask worker {address} {_otherwise(found)}")

    def pack(self, work: Work) -> bytes:
        """Pickle the work."""
        return _pickled(work)

    def submit(self, packed: bytes, start: int, stop: int) -> Any:
        """Begin a unit."""
        if self._client.status != "running":  # its future would never finish
            future: Future[str] = Future()
            future.set_exception(self.cut_off[0]("the connection is closed"))
            return future
        return self._client.submit(evaluate_pickled, SOURCE, packed, start, stop, pure=False)

    def cancel(self, futures: Iterable[Any]) -> None:
        """Drop the units that have not begun, unless the cluster is lost."""
        if self._client.status == "running":
            self._client.cancel(list(futures))

    def close(self, *, abandon: bool) -> None:
        """Disconnect from the cluster, which drops its units."""
        if self._client.status != "running":
            # The client would log, with a traceback, that it has stopped trying to reconnect.
            getLogger("distributed.client").setLevel(CRITICAL)
        self._client.close()


def evaluate(work: Work, start: int, stop: int) -> str:
    """Return the result of a unit as JSON text."""
    try:
        return json.dumps(work(start, stop))
    except SystemExit as problem:  # it would silently end the process that asks for the result
        raise RuntimeError(f"it called sys.exit({problem.code!r})") from problem


def source_here() -> tuple[str, str]:
    """Return version and digest of the mcfsim that this process runs."""
    return SOURCE


def _otherwise(found: Any) -> str:
    """Return how the mcfsim of another process differs from this one, in words."""
    if not isinstance(found, tuple):
        return f"has no mcfsim that can be compared with this one: {type(found).__name__}: {found}"
    (version, digest), (own, other) = found, SOURCE
    return (
        f"has mcfsim {version} of source {digest[:12]}, this process {own} of source {other[:12]}: "
        "install the same one everywhere, and restart the workers"
    )


def evaluate_pickled(source: tuple[str, str], pickled: bytes, start: int, stop: int) -> str:
    """Return the result of a unit of pickled work as JSON text; raise only exceptions that can be pickled."""
    if source != SOURCE:
        raise ValueError(f"this worker, process {os.getpid()} of {node()}, {_otherwise(source)}")
    try:
        return evaluate(_unpickled(pickled), start, stop)
    except Exception as problem:
        try:
            pickle.loads(pickle.dumps(problem))
        except Exception:
            # A failure to unpickle it would look like the death of a worker.
            raise RuntimeError("".join(traceback.format_exception(problem))) from None
        raise


def _pickled(work: Work) -> bytes:
    try:
        from cloudpickle import dumps
    except ImportError:
        from pickle import dumps
    packed: bytes = dumps(work)
    return packed


@lru_cache(maxsize=8)
def _unpickled(pickled: bytes) -> Work:
    """Unpickle work once per worker, so that its caches serve later units, too."""
    work: Work = pickle.loads(pickled)
    return work


def _live_with(watched: Connection) -> None:
    """End this process when the one that started it dies or closes its end of a pipe."""
    # Ctrl-C reaches all processes of a terminal; the first one handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with suppress(EOFError, OSError):
            watched.recv_bytes()
        os._exit(1)

    Thread(target=watch, daemon=True).start()
