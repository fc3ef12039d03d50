"""Sweeps give the same results in order, wherever they run, whatever dies, and however often resumed."""

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

import mcfsim
from mcfsim.sweeps.journal import Journal
from mcfsim.sweeps.sweep import ATTEMPTS, Job, Sweep
from mcfsim.sweeps.workers import Processes

pytestmark = pytest.mark.slow

#: More than a slow machine takes for anything here.
PATIENCE = 60.0


def work(start, stop):
    return {"sum": sum(range(start, stop)), "share": start / 7, "ends": (start, stop), 3: float("inf")}


def expected(job):
    return [json.loads(json.dumps(work(*unit))) for unit in job.units]


def note(file, text):
    """Add a line, whole even if others write."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{text}\n".encode())
    os.close(handle)


def lines(file):
    return file.read_text().split("\n")[:-1] if file.exists() else []


def noted(file, start, stop):
    note(file, start)
    return work(start, stop)


def deadly(folder, start, stop):
    """Kill the process that tries range 30 first."""
    note(folder / "begun", start)
    if start == 30:
        try:
            os.close(os.open(folder / "killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return work(start, stop)
        os.kill(os.getpid(), signal.SIGKILL)
    return work(start, stop)


def poisoned(start, stop):
    if start == 30:
        os.kill(os.getpid(), signal.SIGKILL)
    return work(start, stop)


def wrong(start, stop):
    if start == 30:
        raise OverflowError("the number 37 is too large")
    return work(start, stop)


class Remembering:
    """Work that knows how often it was called, where it is."""

    calls = 0

    def __call__(self, start, stop):
        self.calls += 1
        return {"worker": os.getpid(), "calls": self.calls}


class CannotReturn(Exception):
    """Pickled without complaint; the other side cannot make it again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def cannot_return(start, stop):
    raise CannotReturn("one", "two")


def blocked(file, start, stop):
    if start >= 20:
        note(file, os.getpid())
        threading.Event().wait()
    return work(start, stop)


def tens(stop, work=work, key="tens", label="by tens"):
    return Job(key, label, work, [(start, min(start + 10, stop)) for start in range(0, stop, 10)])


JOBS = [tens(95), Job("none", "no units", work, []), tens(40, key="b"), Job("one", "one", work, [(7, 8)])]


def until(condition):
    end = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)
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


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster.scheduler_address


@pytest.fixture(
    params=[
        {},
        {"workers": 3, "kind": "threads"},
        {"workers": 2},
        "dask",
    ],
    ids=["here", "threads", "processes", "dask"],
)
def place(request):
    return {"dask": request.getfixturevalue("cluster")} if request.param == "dask" else request.param


def test_results_are_those_of_the_work_in_order(place):
    with Sweep(**place) as sweep:
        finished = list(sweep.run(iter(JOBS)))
        again = list(sweep.run(JOBS[2:]))
    assert [job for job, _ in finished] == JOBS
    assert [results for _, results in finished] == [expected(job) for job in JOBS]
    assert again == finished[2:]


def test_nothing_to_do(place):
    with Sweep(**place) as sweep:
        assert list(sweep.run([])) == []
        assert list(sweep.run(JOBS[1:2])) == [(JOBS[1], [])]


def test_a_journal_changes_no_result_and_spares_the_work(place, tmp_path):
    jobs = [tens(95, partial(noted, tmp_path / "a"), "a"), tens(30, partial(noted, tmp_path / "b"), "b")]
    for resume in (False, True):
        with Sweep(**place, journal=tmp_path / "journal", resume=resume) as sweep:
            assert [results for _, results in sweep.run(jobs)] == [expected(job) for job in jobs]
    assert sorted(map(int, lines(tmp_path / "a"))) == list(range(0, 95, 10))
    assert sorted(map(int, lines(tmp_path / "b"))) == [0, 10, 20]


def test_an_error_names_job_and_range(place):
    job = tens(60, wrong)
    with Sweep(**place) as sweep:
        with pytest.raises(
            RuntimeError, match=r"by tens, range \[30, 40\) failed: OverflowError: the number 37"
        ) as raised:
            list(sweep.run([job]))
        assert isinstance(raised.value.__cause__, OverflowError)
        # The sweep can go on with something else.
        assert list(sweep.run(JOBS[2:])) == [(job, expected(job)) for job in JOBS[2:]]


def test_an_error_that_cannot_be_sent_is_told_all_the_same(place):
    with (
        Sweep(**place) as sweep,
        pytest.raises(RuntimeError, match=r"(?s)range \[0, 10\) failed.*one and two"),
    ):
        # Should it look like the death of a worker, this would take some attempts and end in other words.
        list(sweep.run([tens(10, cannot_return)]))


def test_a_result_that_is_no_json_is_refused(place):
    with (
        Sweep(**place) as sweep,
        pytest.raises(RuntimeError, match=r"\[0, 10\) failed: TypeError: .*complex"),
    ):
        list(sweep.run([tens(10, complex)]))


def test_lambdas_are_sent(place):
    job = tens(40, lambda start, stop: work(start, stop))
    with Sweep(**place) as sweep:
        assert list(sweep.run([job])) == [(job, expected(job))]


def test_what_work_remembers_stays_with_its_worker():
    with Sweep(2) as sweep:
        [(_, results)] = sweep.run([tens(200, Remembering())])
    most = {}
    for result in results:
        most[result["worker"]] = max(result["calls"], most.get(result["worker"], 0))
    assert sum(most.values()) == 20


def ignores_ctrl_c(start, stop):
    return {"ignored": signal.getsignal(signal.SIGINT) == signal.SIG_IGN}


def test_processes_leave_ctrl_c_to_the_one_that_started_them():
    with Sweep(2) as sweep:
        [(_, results)] = sweep.run([tens(10, ignores_ctrl_c)])
    assert results == [{"ignored": True}]


def test_after_an_error_nothing_more_is_begun(tmp_path):
    told = threading.Event()

    def work(start, stop):
        note(tmp_path / "begun", start)
        if start == 10:
            raise OverflowError
        told.wait(PATIENCE)
        return {}

    with Sweep(2, kind="threads") as sweep:
        with pytest.raises(RuntimeError, match=r"range \[10, 20\) failed"):
            list(sweep.run([tens(80, work)]))
        told.set()
    # The first is under way in one thread, the third may be in the other.
    assert {"0", "10"} <= set(lines(tmp_path / "begun")) <= {"0", "10", "20"}


def test_leaving_in_the_middle_leaves_nothing_behind(place):
    with Sweep(**place) as sweep:
        assert next(sweep.run(JOBS)) == (JOBS[0], expected(JOBS[0]))
    with Sweep(**place) as sweep:
        unfinished = sweep.run(JOBS)
        next(unfinished)
    unfinished.close()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_work_that_cannot_be_sent_runs_in_threads(kind):
    lock = threading.Lock()

    def locked(start, stop):
        with lock:
            return work(start, stop)

    job = tens(40, locked)
    with Sweep(2, kind=kind) as sweep:
        if kind == "threads":
            assert list(sweep.run([job])) == [(job, expected(job))]
        else:
            with pytest.raises(ValueError, match=r'by tens: work cannot be sent .*kind="threads"'):
                list(sweep.run([job]))


def test_without_cloudpickle_lambdas_are_refused_and_functions_sent(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with Sweep(2) as sweep:
        with pytest.raises(ValueError, match='kind="threads"'):
            list(sweep.run([tens(40, lambda start, stop: {})]))
        assert list(sweep.run(JOBS)) == [(job, expected(job)) for job in JOBS]


@pytest.mark.parametrize("where", ["processes", "dask"])
def test_a_worker_that_is_killed_costs_time_alone(where, tmp_path, request):
    place = {"workers": 2} if where == "processes" else {"dask": request.getfixturevalue("cluster")}
    jobs = [tens(80, partial(deadly, tmp_path)), tens(50, key="after")]
    with Sweep(**place, journal=tmp_path / "journal") as sweep:
        assert list(sweep.run(jobs)) == [(job, expected(job)) for job in jobs]
    begun = lines(tmp_path / "begun")
    assert begun.count("30") == 2
    assert len(begun) <= 8 + 4  # what was under way on two workers
    with Journal(tmp_path / "journal") as journal:
        assert len(journal.results("tens")) == 8


def test_a_range_that_kills_every_process_is_named_and_spared_by_resuming(tmp_path):
    with (
        Sweep(2, journal=tmp_path / "journal") as sweep,
        pytest.raises(RuntimeError, match=rf"workers died {ATTEMPTS} times.*resume=True") as told,
    ):
        list(sweep.run([tens(60, poisoned)]))
    assert "by tens, range [30, 40)" in str(told.value)
    with Sweep(journal=tmp_path / "journal", resume=True) as sweep:
        assert list(sweep.run([tens(60)])) == [(tens(60), expected(tens(60)))]


def test_a_range_that_kills_every_dask_worker_is_named():
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Sweep(dask=cluster.scheduler_address) as sweep,
        pytest.raises(RuntimeError, match=rf"workers died {ATTEMPTS} times") as told,
    ):
        list(sweep.run([tens(40, poisoned)]))
    assert "by tens, range [30, 40)" in str(told.value)


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
sys.path.insert(0, {tests!r})
from tests.sweeps import test_sweep
from mcfsim.sweeps.sweep import Sweep

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    work = partial(getattr(test_sweep, sys.argv[2]), folder / "noted")
    jobs = [test_sweep.tens(600, work, "a"), test_sweep.tens(300, work, "b")]
    with Sweep(int(sys.argv[3]), journal=folder / "journal", resume=True) as sweep:
        for job, results in sweep.run(jobs):
            print(job.key, results)
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a sweep in a process of its own."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[2])))
    begun = []

    def start(work, workers):
        command = [sys.executable, script, tmp_path, work, str(workers)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("workers", "kills"), [(1, 4), (2, 1)])
@pytest.mark.sampled(4, each=False)
def test_a_sweep_killed_again_and_again_ends_in_the_same_results(workers, kills, start, tmp_path):
    draw, ends = random.Random(workers), []
    for _ in range(kills):
        process = start("slowly_noted", workers)
        enough = len(lines(tmp_path / "noted")) + draw.randint(1, 15)
        until(lambda enough=enough: len(lines(tmp_path / "noted")) >= min(enough, 90))
        time.sleep(draw.random() / 100)
        process.kill()
        process.communicate()
        ends.append(process.returncode)
    assert -signal.SIGKILL in ends
    process = start("slowly_noted", workers)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert out == "".join(f"{job.key} {expected(job)}\n" for job in (tens(600, key="a"), tens(300, key="b")))
    tried = [int(text) for text in lines(tmp_path / "noted")]
    # Each kill costs what was under way or about to be recorded.
    assert len(tried) - 90 <= kills * (1 if workers == 1 else 2 * workers)


def slowly_noted(file, start, stop):
    result = noted(file, start, stop)
    time.sleep(0.01)
    return result


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_at_once_and_keeps_what_was_finished(workers, start, tmp_path):
    process = start("blocked", workers)
    until(lambda: len(lines(tmp_path / "noted")) == workers)
    until(lambda: len(recorded(tmp_path, "a")) == 2)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1
    assert time.monotonic() - began < 10
    assert all(gone(pid) for pid in lines(tmp_path / "noted"))
    with Journal(tmp_path / "journal") as journal:
        assert list(journal.results("a")) == [(0, 10), (10, 20)]


def test_the_workers_of_a_killed_sweep_end(start, tmp_path):
    process = start("blocked", 2)
    pids = until(lambda: len(lines(tmp_path / "noted")) == 2 and lines(tmp_path / "noted"))
    assert not any(gone(pid) for pid in pids)
    process.kill()
    until(lambda: all(gone(pid) for pid in pids))


def test_processes_are_ended_though_units_are_cancelled_that_wait(tmp_path, monkeypatch):
    """Were they cancelled before, the pool's thread would raise, which is an error of the test."""
    workers = Processes(1)
    shutdown = workers._pool.shutdown

    def late(**options):
        until(lambda: all(gone(pid) for pid in lines(tmp_path / "noted")))
        shutdown(**options)

    monkeypatch.setattr(workers._pool, "shutdown", late)
    packed = workers.pack(partial(blocked, tmp_path / "noted"))
    futures = [workers.submit(packed, start, start + 10) for start in range(20, 90, 10)]
    until(lambda: len(lines(tmp_path / "noted")) == 1)
    workers.cancel(futures)
    workers.close(abandon=True)
    assert all(future.done() for future in futures)
    assert all(gone(pid) for pid in lines(tmp_path / "noted"))


def test_units_that_wait_are_dropped_where_processes_live_on(tmp_path):
    workers = Processes(1)
    packed = workers.pack(partial(slowly_noted, tmp_path / "noted"))
    workers.cancel([workers.submit(packed, start, start + 10) for start in range(0, 900, 10)])
    last = workers.submit(packed, 900, 910)
    assert last.result(timeout=PATIENCE) == json.dumps(work(900, 910))
    workers.close(abandon=False)
    assert len(lines(tmp_path / "noted")) < 10  # those that the pool had handed over


def test_a_fresh_start_must_be_asked_for(tmp_path):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.record("tens", 0, 10, '"stale"')
        journal.record("other", 0, 10, '"kept"')
    for options in ({}, {"resume": None}, {"resume": True}):
        with Sweep(journal=path, **options) as sweep:
            assert [results[0] for _, results in sweep.run([tens(20)])] == ["stale"]
            assert sweep.resumed == (10 if options == {} else 20)
    with Sweep(journal=path, resume=False) as sweep:
        assert list(sweep.run([tens(20)])) == [(tens(20), expected(tens(20)))]
        assert sweep.resumed == 0
    with Journal(path) as journal:
        assert [json.loads(text) for text in journal.results("tens").values()] == expected(tens(20))
        assert journal.results("other") == {(0, 10): '"kept"'}


def test_with_resume_recorded_results_are_taken(tmp_path):
    path, first = tmp_path / "journal", {"from": "the journal"}
    with Journal(path) as journal:
        journal.record("tens", 0, 10, json.dumps(first))
        journal.record("tens", 10, 15, json.dumps("another range"))
        journal.record("other", 10, 20, json.dumps("another job"))
    with Sweep(journal=path, resume=True) as sweep:
        [(_, results)] = sweep.run([tens(20)])
    assert results == [first, expected(tens(20))[1]]


def test_results_are_in_the_journal_before_the_job_ends(tmp_path):
    def look(start, stop):
        return {"recorded": len(recorded(tmp_path, "tens"))}

    with Sweep(journal=tmp_path / "journal") as sweep:
        [(_, results)] = sweep.run([tens(50, look)])
    assert [result["recorded"] for result in results] == [0, 1, 2, 3, 4]


def test_later_jobs_begin_while_an_earlier_one_runs(tmp_path):
    def first(start, stop):
        """End only when the second job is under way."""
        if start == 10:
            until((tmp_path / "second").exists)
        return work(start, stop)

    def second(start, stop):
        (tmp_path / "second").touch()
        return work(start, stop)

    jobs = [tens(20, first, "first"), tens(20, second, "second")]
    with Sweep(2, kind="threads") as sweep:
        assert list(sweep.run(jobs)) == [(job, expected(job)) for job in jobs]


def test_the_bar_tells_the_job_and_the_operands(capsys):
    with Sweep(2, kind="threads", progress=True) as sweep:
        list(sweep.run([tens(2500)]))
    out, err = capsys.readouterr()
    assert out == ""
    assert "by tens" in err
    assert "2.5 k/2.5 k" in err
    with Sweep(2, kind="threads") as sweep:
        list(sweep.run([tens(2500)]))
    assert capsys.readouterr() == ("", "")


def test_resumed_operands_are_done_but_do_not_count_as_speed(capsys):
    from mcfsim.sweeps.progress import Bar  # here, since every worker imports this file

    with Bar() as bar:
        bar.expect(10**9)
        bar.skip(5 * 10**8)
        bar.advance(10)
        time.sleep(0.01)
        bar.advance(20)
        task = bar._progress.tasks[0]
        assert task.completed == 5 * 10**8 + 30
        assert 0 < task.speed <= 20 / 0.01
    assert "500 M/1.0 G" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"workers": 0}, ValueError, "workers = 0 must be at least 1"),
        ({"workers": 2.0}, TypeError, "workers must be an int, not 2.0"),
        ({"kind": "fork"}, ValueError, "unknown kind of workers 'fork'; known kinds: threads, processes"),
        ({"resume": True}, ValueError, "resume needs the journal"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        Sweep(**options)


@pytest.mark.parametrize(
    ("unit", "error"),
    [((3, 3), ValueError), ((4, 3), ValueError), ((0.0, 1.0), TypeError), ((1, 2, 3), TypeError)],
)
def test_bad_units_are_refused(unit, error):
    with pytest.raises(error, match="by tens"):
        Job("key", "by tens", work, [(0, 1), unit])


def test_bad_jobs_are_refused():
    with pytest.raises(TypeError, match="by tens: work must be callable, not 3"):
        tens(10, 3)
    with Sweep() as sweep, pytest.raises(ValueError, match="different keys: tens, b, tens"):
        sweep.run([tens(10), tens(10, key="b"), tens(20)])
    with pytest.raises(RuntimeError, match="inside its with statement"):
        sweep.run([])


@pytest.mark.parametrize("address", ["no address", "tcp://127.0.0.1:9"])
def test_a_scheduler_that_is_not_there_is_named(address, tmp_path):
    dask, _ = pytest.importorskip("dask"), pytest.importorskip("distributed")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(ValueError, match=f"no Dask scheduler can be reached at '{address}'"),
        Sweep(dask=address, journal=tmp_path / "journal"),
    ):
        pass
    Journal(tmp_path / "journal").close()  # was let go


def test_without_distributed_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(ImportError, match=r"pip install 'mcfsim\[dask\]'"),
        Sweep(dask="tcp://127.0.0.1:8786"),
    ):
        pass


# -- nothing is taken on trust ------------------------------------------------------------------------------
def sums_to(start, stop, result):
    if result["sum"] != sum(range(start, stop)):
        raise ValueError(f"{result['sum']} is not the sum")


def wrong_in_a_worker(start, stop):
    return {"sum": -1 if start == 30 else sum(range(start, stop))}


def test_what_comes_back_from_a_worker_is_validated(place, tmp_path):
    job = Job("tens", "by tens", wrong_in_a_worker, tens(60).units, sums_to)
    with (
        Sweep(**place, journal=tmp_path / "journal") as sweep,
        pytest.raises(RuntimeError, match=r"by tens, range \[30, 40\) failed: .*-1 is not the sum"),
    ):
        list(sweep.run([job]))
    with Journal(tmp_path / "journal") as journal:
        assert (30, 40) not in journal.results("tens")


@pytest.mark.parametrize("text", ['{"sum": -1}', "{", "[" * 10**5, '{"sum": 1, "sum": 2}', "9" * 5000])
def test_what_comes_from_a_journal_is_validated(text, tmp_path):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.record("tens", 10, 20, text)
    job = Job("tens", "by tens", work, tens(60).units, sums_to)
    with (
        Sweep(journal=path) as sweep,
        pytest.raises(
            ValueError, match=r"journal .*journal is damaged: its row of by tens, range \[10, 20\)"
        ),
    ):
        list(sweep.run([job]))
    with Sweep(journal=path, resume=False) as sweep:
        assert list(sweep.run([job])) == [(job, expected(job))]


# -- Dask: the same package everywhere, and a scheduler that is lost ----------------------------------------
@pytest.fixture
def dask_cluster(tmp_path):
    """Return a function that starts a scheduler and workers, each with a copy of the package or ours."""
    distributed = pytest.importorskip("distributed")
    begun = []

    def launch(kind, *arguments, path=None):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, *sys.path]))}
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--no-dashboard", *arguments]
        begun.append(
            subprocess.Popen(
                command, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
        return begun[-1]

    def start(*packages):
        file = tmp_path / "scheduler.json"
        scheduler = launch("scheduler", "--port", "0", "--scheduler-file", str(file))
        until(lambda: file.exists() and file.read_text())
        address = json.loads(file.read_text())["address"]
        for package in packages:
            launch("worker", address, "--nthreads", "1", "--no-nanny", path=package)
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(len(packages), timeout=PATIENCE)
        return address, scheduler, lambda package: launch("worker", address, "--no-nanny", path=package)

    yield start
    for process in begun:
        process.kill()
        process.wait()


def copied(folder, alter):
    """Copy the package and alter the copy."""
    package = folder / "mcfsim"
    shutil.copytree(Path(mcfsim.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    alter(package)
    return str(folder)


def append(name, text):
    return lambda package: (package / name).write_text((package / name).read_text() + text)


@pytest.mark.parametrize(
    ("alter", "told"),
    [
        (
            append("eft.py", "\n\ndef two_sum(ar, a, b):\n    return ar.add(a, b), a\n"),
            "has mcfsim .* of source",
        ),
        # One of before there was anything to compare.
        pytest.param(
            append("sweeps/workers.py", "\ndel source_here\n"),
            "has no mcfsim that can be compared with this one",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["altered", "older"],
)
def test_a_dask_worker_with_another_package_is_refused_before_work_is_sent(
    alter, told, dask_cluster, tmp_path
):
    address, *_ = dask_cluster(None, copied(tmp_path, alter))
    with (
        pytest.raises(ValueError, match=f"the Dask worker tcp://.* {told}"),
        Sweep(dask=address, journal=tmp_path / "journal"),
    ):
        pass
    Journal(tmp_path / "journal").close()  # was let go


@pytest.mark.exhaustive
def test_a_dask_worker_with_another_package_that_comes_later_refuses_its_work(dask_cluster, tmp_path):
    address, _, launch = dask_cluster(None)
    job = tens(10**4, slowly)
    with Sweep(dask=address) as sweep:
        results = sweep.run([job])
        launch(copied(tmp_path, append("eft.py", "#")))
        with pytest.raises(RuntimeError, match=r"this worker, process \d+ of .* has mcfsim"):
            list(results)


def slowly(start, stop):
    time.sleep(0.02)
    return work(start, stop)


def test_a_lost_scheduler_is_named_and_what_is_finished_is_kept(dask_cluster, tmp_path):
    address, scheduler, _ = dask_cluster(None, None)
    job, path = tens(4000, slowly), tmp_path / "journal"

    def kill():
        until(lambda: path.exists() and len(recorded(tmp_path, "tens")) > 10)
        scheduler.kill()

    killer = threading.Thread(target=kill)
    with Sweep(dask=address, journal=path) as sweep:
        killer.start()
        with pytest.raises(ConnectionError, match=f"scheduler at {address} was lost.*in the journal {path}"):
            list(sweep.run([job]))
    killer.join()
    with Sweep(2, kind="threads", journal=path) as sweep:
        assert list(sweep.run([job])) == [(job, expected(job))]
        assert sweep.resumed >= 100
