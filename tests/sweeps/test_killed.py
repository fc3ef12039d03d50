"""Sweeps whose processes, workers or schedulers are killed, or are of another package."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import mcfsim as mcf
from mcfsim.storage.sweeps.journal import Journal
from mcfsim.storage.sweeps.sweep import Sweep
from mcfsim.storage.sweeps.workers import Processes
from tests.sweeps import jobs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("where", ["processes", "dask"])
@pytest.mark.costly("workers start anew, which are processes that import Dask")
@pytest.mark.sampled(2, each=False)
def test_a_killed_worker_costs_time_alone_and_a_range_that_kills_each_is_named(
    where, request, tmp_path, monkeypatch
):
    """The named range is spared by resuming."""
    several = [jobs.tens(80, partial(jobs.deadly, tmp_path), "a"), jobs.tens(50, key="after")]
    place, path, attempts = {"workers": 2}, tmp_path / "journal", 2
    if where == "dask":  # whose scheduler begins a lost unit again, as often as it allows
        distributed = pytest.importorskip("distributed")
        cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0")
        request.addfinalizer(cluster.close)
        place, attempts = {"dask": cluster.scheduler_address}, 1
    monkeypatch.setattr("mcfsim.storage.sweeps.sweep.ATTEMPTS", attempts)
    with Sweep(**place, journal=path) as sweep:
        assert list(sweep.run(several)) == jobs.done(*several)
        if where == "dask":
            monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
        told = rf"by tens, range \[30, 40\): workers died {attempts} times.*resume=True"
        with pytest.raises(RuntimeError, match=told):
            list(sweep.run([jobs.tens(40, jobs.poisoned)]))
    begun = jobs.lines(tmp_path / "begun")
    assert begun.count("30") == 2
    assert len(begun) <= 8 + 4  # what was under way on two workers
    with Journal(path) as journal:
        assert len(journal.results("a")) == 8
    with Sweep(journal=path, resume=True) as sweep:
        assert list(sweep.run([jobs.tens(60)])) == jobs.done(jobs.tens(60))


@pytest.fixture
def begin():
    """Return a function that starts a process, which does not outlive the test."""
    begun = []

    def begin(*command, **options):
        begun.append(subprocess.Popen(command, **options))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


# -- sweeps in processes of their own -----------------------------------------------------------------------
SCRIPT = """
import sys
from functools import partial
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.sweeps import jobs
from mcfsim.storage.sweeps.sweep import Sweep

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    noted = partial(getattr(jobs, sys.argv[2]), folder / "noted")
    with Sweep(int(sys.argv[3]), journal=folder / "journal", resume=True) as sweep:
        for job, results in sweep.run([jobs.tens(600, noted, "a"), jobs.tens(300, noted, "b")]):
            print(job.key, results)
"""


@pytest.fixture
def start(begin, tmp_path):
    """Return a function that starts a sweep in a process of its own."""
    script, pipes = tmp_path / "script.py", {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[2])))
    command = sys.executable, script, tmp_path
    return lambda *words: begin(*command, *map(str, words), start_new_session=True, text=True, **pipes)


@pytest.mark.parametrize(("workers", "kills"), [(1, 1), pytest.param(2, 2, marks=pytest.mark.exhaustive)])
def test_a_sweep_killed_again_and_again_ends_in_the_same_results(workers, kills, start, tmp_path):
    draw, ends = random.Random(workers), []
    for _ in range(kills):
        process = start("slowly_noted", workers)
        enough = len(jobs.lines(tmp_path / "noted")) + draw.randint(1, 15)
        jobs.until(lambda enough=enough: len(jobs.lines(tmp_path / "noted")) >= min(enough, 90))
        time.sleep(draw.random() / 100)
        process.kill()
        process.communicate()
        ends.append(process.returncode)
    assert -signal.SIGKILL in ends
    process = start("slowly_noted", workers)
    out, err = process.communicate(timeout=jobs.PATIENCE)
    assert (process.returncode, err) == (0, "")
    of_all = jobs.tens(600, key="a"), jobs.tens(300, key="b")
    assert out == "".join(f"{job.key} {jobs.expected(job)}\n" for job in of_all)
    tried = [int(text) for text in jobs.lines(tmp_path / "noted")]
    # Each kill costs what was under way or about to be recorded.
    assert len(tried) - 90 <= kills * (1 if workers == 1 else 2 * workers)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_ctrl_c_ends_at_once_and_keeps_what_was_finished(workers, start, tmp_path):
    process = start("blocked", workers)
    jobs.until(lambda: len(jobs.lines(tmp_path / "noted")) == workers)
    jobs.until(lambda: len(jobs.recorded(tmp_path, "a")) == 2)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=jobs.PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1
    assert time.monotonic() - began < 10
    assert all(jobs.gone(pid) for pid in jobs.lines(tmp_path / "noted"))
    with Journal(tmp_path / "journal") as journal:
        assert list(journal.results("a")) == [(0, 10), (10, 20)]


def test_ctrl_c_in_this_process_keeps_what_was_finished(tmp_path):
    def interrupted(start, stop):
        if start == 20:
            raise KeyboardInterrupt
        return jobs.summed(start, stop)

    with pytest.raises(KeyboardInterrupt), Sweep(journal=tmp_path / "journal") as sweep:
        list(sweep.run([jobs.tens(60, interrupted)]))
    with Journal(tmp_path / "journal") as journal:
        assert list(journal.results("tens")) == [(0, 10), (10, 20)]


def test_the_workers_of_a_killed_sweep_end(start, tmp_path):
    process = start("blocked", 2)
    pids = jobs.until(lambda: len(jobs.lines(tmp_path / "noted")) == 2 and jobs.lines(tmp_path / "noted"))
    assert not any(jobs.gone(pid) for pid in pids)
    process.kill()
    jobs.until(lambda: all(jobs.gone(pid) for pid in pids))


def test_units_that_wait_are_dropped_where_processes_are_ended(tmp_path, monkeypatch):
    """Were they cancelled before the end, the pool's thread would raise, which is an error of the test."""
    noted, workers = tmp_path / "noted", Processes(1)
    shutdown = workers._pool.shutdown

    def late(**options):
        jobs.until(lambda: all(map(jobs.gone, jobs.lines(noted))))
        shutdown(**options)

    monkeypatch.setattr(workers._pool, "shutdown", late)
    packed = workers.pack(partial(jobs.blocked, noted))
    futures = [workers.submit(packed, start, start + 10) for start in range(20, 90, 10)]
    jobs.until(lambda: len(jobs.lines(noted)) == 1)
    workers.cancel(futures)
    workers.close(abandon=True)
    assert all(future.done() for future in futures)
    assert all(map(jobs.gone, jobs.lines(noted)))


# -- Dask: the same package everywhere, and a scheduler that is lost ----------------------------------------
def refuse(address, told, path):
    """Assert that a scheduler is refused, and the journal let go."""
    with pytest.raises(ValueError, match=told), Sweep(dask=address, journal=path):
        pass
    Journal(path).close()


@pytest.mark.parametrize("address", ["no address", "tcp://127.0.0.1:9"])
@pytest.mark.sampled(2, each=False)
@pytest.mark.costly("processes are started, and some are killed")
def test_a_scheduler_that_is_not_there_is_named(address, tmp_path):
    dask, _ = pytest.importorskip("dask"), pytest.importorskip("distributed")
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        refuse(address, f"no Dask scheduler can be reached at '{address}'", tmp_path / "journal")


def test_without_distributed_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"pip install 'mcfsim\[dask\]'"):
        Sweep(dask="tcp://127.0.0.1:8786").__enter__()


@pytest.fixture
def launch(begin, tmp_path):
    """Return a function that starts a scheduler or a worker, with a copy of the package or with ours."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}

    def launch(kind, *words, package=None):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [package, *sys.path]))}
        command = sys.executable, "-m", f"distributed.cli.dask_{kind}", "--no-dashboard"
        return begin(*command, *words, env=environment, **quiet)

    return launch


@pytest.fixture
def join(launch, cluster, tmp_path):
    """Return a function that lets a worker with an altered copy of the package join the cluster."""
    before, begun = len(cluster.scheduler.workers), []

    def join(name, text):
        copy = tmp_path / "mcfsim"
        shutil.copytree(Path(mcf.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        jobs.note(copy / name, text)
        words = (cluster.scheduler_address, "--nthreads", "1", "--no-nanny")
        begun.append(launch("worker", *words, package=str(tmp_path)))

    yield join
    for process in begun:
        process.kill()
    jobs.until(lambda: len(cluster.scheduler.workers) == before)


NONE = "has no mcfsim that can be compared with this one"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("eft.py", "\n\ndef two_sum(ar, a, b):\n    return ar.add(a, b), a", "has mcfsim .* of source"),
        # One of before there was anything to compare.
        pytest.param("storage/sweeps/workers.py", "\ndel source_here", NONE, marks=pytest.mark.exhaustive),
    ],
    ids=["altered", "older"],
)
@pytest.mark.costly("a worker is a process, which imports Dask")
def test_a_dask_worker_with_another_package_is_refused_before_work_is_sent(
    name, text, told, join, cluster, tmp_path
):
    join(name, text)
    jobs.until(lambda: len(cluster.scheduler.workers) == 3)
    before = {*cluster.scheduler.clients}
    refuse(cluster.scheduler_address, f"the Dask worker tcp://.* {told}", tmp_path / "journal")
    jobs.until(lambda: before >= {*cluster.scheduler.clients})


@pytest.mark.exhaustive
def test_a_dask_worker_with_another_package_that_comes_later_refuses_its_work(join, cluster):
    with Sweep(dask=cluster.scheduler_address) as sweep:
        results = sweep.run([jobs.tens(10**4, jobs.slowly)])
        join("eft.py", "#")
        with pytest.raises(RuntimeError, match=r"this worker, process \d+ of .* has mcfsim"):
            list(results)


@pytest.mark.exhaustive
def test_a_lost_scheduler_is_named_and_what_is_finished_is_kept(launch, tmp_path):
    pytest.importorskip("distributed")
    file, path, job = tmp_path / "scheduler.json", tmp_path / "journal", jobs.tens(1000, jobs.slowly)
    scheduler = launch("scheduler", "--port", "0", "--scheduler-file", str(file))
    address = json.loads(jobs.until(lambda: file.exists() and file.read_text()))["address"]
    launch("worker", address, "--nthreads", "1", "--no-nanny")

    def kill():
        jobs.until(lambda: path.exists() and len(jobs.recorded(tmp_path, "tens")) > 10, pause=0.1)
        scheduler.kill()

    killer = threading.Thread(target=kill)
    with Sweep(dask=address, journal=path) as sweep:
        killer.start()
        with pytest.raises(ConnectionError, match=f"scheduler at {address} was lost.*in the journal {path}"):
            list(sweep.run([job]))
    killer.join()
    with Sweep(journal=path) as sweep:
        assert list(sweep.run([job])) == jobs.done(job)
        assert sweep.resumed >= 100
