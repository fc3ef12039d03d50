"""Sweeps give the same results in order, wherever they run, however often resumed, and name what fails."""

import io
import json
import sys
import threading
import time
from functools import partial

import pytest

from mcfsim.storage.sweeps.journal import Journal
from mcfsim.storage.sweeps.progress import Bar, one_by_one
from mcfsim.storage.sweeps.sweep import Job, Sweep
from tests.shared.refusals import check, refusals, refused
from tests.sweeps import jobs

pytestmark = pytest.mark.slow

PLACES = {"here": {}, "threads": {"workers": 3, "kind": "threads"}, "processes": {"workers": 2}, "dask": None}


def options_of(place, request):
    if place != "dask":
        return PLACES[place]
    return {"dask": request.getfixturevalue("cluster").scheduler_address}


@pytest.fixture(scope="module", params=PLACES)
def sweep(request):
    """Return a sweep in one of the places that stays open, so that its workers start once."""
    with Sweep(**options_of(request.param, request)) as sweep:
        yield sweep


of_processes = pytest.mark.parametrize("sweep", ["processes"], indirect=True)


def test_results_are_those_of_the_work_in_order(sweep):
    of_all = jobs.done(*jobs.JOBS)
    assert list(sweep.run(iter(jobs.JOBS))) == of_all
    assert list(sweep.run([])) == []
    assert list(sweep.run(jobs.JOBS[1:2])) == [(jobs.JOBS[1], [])]
    assert next(sweep.run(jobs.JOBS)) == of_all[0]  # the others are dropped, and may be asked for again
    own = jobs.tens(40, lambda start, stop: jobs.summed(start, stop))
    assert list(sweep.run([own, *jobs.JOBS[2:]])) == [*jobs.done(own), *of_all[2:]]


#: Work, how far it goes, what validates it, what is said, and of which error.
FAILURES = {
    "error": (jobs.wrong, 60, None, r"by tens, range \[30, 40\) failed: OverflowError: the", OverflowError),
    # Should it look like the death of a worker, it would be tried again and end in other words.
    "cannot be sent": (jobs.cannot_return, 10, None, r"(?s)range \[0, 10\) failed.*one and two", Exception),
    "ends": (jobs.ends, 60, None, r"by tens, range \[30, 40\) failed: .* called sys.exit\(2\)", RuntimeError),
    "no JSON": (complex, 10, None, r"\[0, 10\) failed: TypeError: .*complex", TypeError),
    "no result": (jobs.wrong_sum, 60, jobs.sums_to, r"\[30, 40\) failed: .*-1 is not the sum", ValueError),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_what_fails_is_named_and_the_sweep_goes_on(failure, sweep):
    work, stop, validate, told, cause = FAILURES[failure]
    with pytest.raises(RuntimeError, match=told) as raised:
        list(sweep.run([jobs.tens(stop, work, validate=validate)]))
    assert isinstance(raised.value.__cause__, cause)
    assert list(sweep.run(jobs.JOBS[3:])) == jobs.done(*jobs.JOBS[3:])


@pytest.mark.parametrize("place", PLACES)
def test_leaving_in_the_middle_leaves_nothing_behind(place, request):
    with Sweep(**options_of(place, request)) as sweep:
        unfinished = sweep.run(jobs.JOBS)
        assert [next(unfinished)] == jobs.done(jobs.JOBS[0])
    unfinished.close()


def test_the_connection_to_a_cluster_ends_with_the_sweep(cluster):
    others = {*cluster.scheduler.clients}
    with Sweep(dask=cluster.scheduler_address):
        own = jobs.until(lambda: {*cluster.scheduler.clients} - others)
    jobs.until(lambda: not own & {*cluster.scheduler.clients})


@of_processes
def test_what_work_remembers_stays_with_its_process_which_leaves_ctrl_c_to_others(sweep):
    [(_, results)] = sweep.run([jobs.tens(200, jobs.Remembering())])
    assert all(result["ignored"] for result in results)
    # Of each process the highest count; in the order of counts it is the last.
    most = {result["worker"]: result["calls"] for result in sorted(results, key=lambda x: x["calls"])}
    assert sum(most.values()) == 20


@of_processes
def test_work_that_cannot_be_sent_runs_in_threads_alone(sweep, monkeypatch):
    lock = threading.Lock()

    def locked(start, stop):
        with lock:
            return jobs.summed(start, stop)

    job = jobs.tens(40, locked)
    with Sweep(2, kind="threads") as threads:
        assert list(threads.run([job])) == jobs.done(job)
    told = pytest.raises(ValueError, match=r'by tens: work cannot be sent .*kind="threads"')
    with told:
        list(sweep.run([job]))
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with told:
        list(sweep.run([jobs.tens(40, lambda start, stop: {})]))
    assert list(sweep.run(jobs.JOBS)) == jobs.done(*jobs.JOBS)


def test_after_an_error_nothing_more_is_begun(tmp_path):
    told = threading.Event()

    def work(start, stop):
        jobs.note(tmp_path / "begun", start)
        if start == 10:
            raise OverflowError
        told.wait(jobs.PATIENCE)
        return {}

    with Sweep(2, kind="threads") as sweep:
        with pytest.raises(RuntimeError, match=r"range \[10, 20\) failed"):
            list(sweep.run([jobs.tens(80, work)]))
        told.set()
    # The first is under way in one thread, the third may be in the other.
    assert {"0", "10"} <= set(jobs.lines(tmp_path / "begun")) <= {"0", "10", "20"}


def test_later_jobs_begin_while_an_earlier_one_runs():
    """The first ends only when the second is under way."""
    begun = threading.Event()

    def first(start, stop):
        assert start != 10 or begun.wait(jobs.PATIENCE)
        return jobs.summed(start, stop)

    def second(start, stop):
        begun.set()
        return jobs.summed(start, stop)

    several = [jobs.tens(20, first, "first"), jobs.tens(20, second, "second")]
    with Sweep(2, kind="threads") as sweep:
        assert list(sweep.run(several)) == jobs.done(*several)


# -- the journal --------------------------------------------------------------------------------------------
def test_recorded_results_of_job_and_range_are_taken_unless_a_fresh_start_is_asked_for(tmp_path):
    path, fresh = tmp_path / "journal", jobs.expected(jobs.tens(20))
    with Journal(path) as journal:
        for job, start, stop in (("tens", 0, 10), ("tens", 10, 15), ("other", 10, 20)):
            journal.record(job, start, stop, f'"{job} {start}"')
    for options in ({}, {"resume": None}, {"resume": True}):
        with Sweep(journal=path, **options) as sweep:
            assert list(sweep.run([jobs.tens(20)])) == [(jobs.tens(20), ["tens 0", fresh[1]])]
            assert sweep.resumed == (10 if options == {} else 20)
    with Sweep(journal=path, resume=False) as sweep:
        assert list(sweep.run([jobs.tens(20)])) == [(jobs.tens(20), fresh)]
        assert sweep.resumed == 0
    with Journal(path) as journal:
        kept = {unit: json.loads(text) for unit, text in journal.results("tens").items()}
        assert kept == dict(zip(jobs.tens(20).units, fresh, strict=True))
        assert journal.results("other") == {(10, 20): '"other 10"'}


def test_results_are_in_the_journal_before_the_job_ends_and_wrong_ones_never(tmp_path):
    def look(start, stop):
        return {"sum": sum(range(start, min(stop, 55))), "recorded": len(jobs.recorded(tmp_path, "tens"))}

    with Sweep(journal=tmp_path / "journal") as sweep:
        [(_, results)] = sweep.run([jobs.tens(50, look)])
        assert [result["recorded"] for result in results] == [0, 1, 2, 3, 4]
        with pytest.raises(RuntimeError, match=r"range \[50, 60\) failed: .*is not the sum"):
            list(sweep.run([jobs.tens(70, look, validate=jobs.sums_to)]))
    with Journal(tmp_path / "journal") as journal:
        assert list(journal.results("tens")) == jobs.tens(50).units


@pytest.mark.parametrize("text", ['{"sum": -1}', "{", "[" * 10**5, '{"sum": 1, "sum": 2}', "9" * 5000])
def test_what_comes_from_a_journal_is_validated(text, tmp_path):
    path, job = tmp_path / "journal", jobs.tens(60, validate=jobs.sums_to)
    with Journal(path) as journal:
        journal.record("tens", 10, 20, text)
    told = r"journal .*journal is damaged: its row of by tens, range \[10, 20\)"
    with Sweep(journal=path) as sweep, pytest.raises(ValueError, match=told):
        list(sweep.run([job]))
    with Sweep(journal=path, resume=False) as sweep:
        assert list(sweep.run([job])) == jobs.done(job)


# -- the bar ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("progress", [True, False])
def test_the_bar_tells_the_job_and_the_operands(progress, capsys):
    with Sweep(2, kind="threads", progress=progress) as sweep:
        list(sweep.run([jobs.tens(2500)]))
    out, err = capsys.readouterr()
    assert (out, "by tens" in err, "2.5 k/2.5 k" in err) == ("", progress, progress)
    assert progress or err == ""


def test_resumed_operands_are_done_but_do_not_count_as_speed():
    with Bar() as bar:
        bar.expect(10**9)
        bar.skip(5 * 10**8)
        bar.count(10)
        time.sleep(0.01)
        bar.count(20)
        task = bar.tasks[0]
        assert task.completed == 5 * 10**8 + 30
        assert 0 < task.speed <= 20 / 0.01


# -- refusals -----------------------------------------------------------------------------------------------
def units(*given):
    return Job("key", "by tens", jobs.summed, [(0, 1), given])


def run(*given):
    with Sweep() as sweep:
        sweep.run(given)
    sweep.run([])


@refusals(
    refused(ValueError, "workers = 0 must be at least 1", Sweep, 0),
    refused(TypeError, "workers must be an int, not 2.0", Sweep, 2.0),
    refused(ValueError, "kind of workers 'fork'; known kinds: threads", partial(Sweep, kind="fork"), ()),
    refused(ValueError, "resume needs the journal", partial(Sweep, resume=True), ()),
    refused(TypeError, "resume must be True or False, not 1", partial(Sweep, resume=1), ()),
    refused(ValueError, r"by tens: unit \([34], 3\) is empty", units, (3, 3), (4, 3)),
    refused(TypeError, "by tens: units are pairs of int, not", units, (0.0, 1.0), (1, 2, 3)),
    refused(TypeError, "by tens: work must be callable, not 3", jobs.tens, (10, 3)),
    refused(ValueError, "different keys: tens, tens", run, (jobs.tens(10), jobs.tens(20))),
    refused(RuntimeError, "inside its with statement", run, ()),
)
def test_what_makes_no_sense_is_refused(rows):
    check(rows)


# -- answers in turn -----------------------------------------------------------------------------------------
class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_answers_are_given_in_turn_beneath_a_bar_that_a_terminal_shows(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", shown := (Terminal if terminal else io.StringIO)())
    found = []
    for answer in one_by_one(iter([(), "two", 3]), 3, "proving"):
        found.append((answer, shown.getvalue().count("proving")))
    assert [answer for answer, _ in found] == [(), "two", 3]
    times = [count for _, count in found]
    assert times == sorted(times)
    assert (times[0] > 0) == terminal
    assert ("1/3" in shown.getvalue()) == terminal


def test_what_an_answer_raises_is_raised(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())

    def answers():
        yield 1
        raise KeyboardInterrupt

    given = one_by_one(answers(), 2, "proving")
    assert next(given) == 1
    with pytest.raises(KeyboardInterrupt):
        next(given)
