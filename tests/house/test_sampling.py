"""Which cases are run: what one run leaves out another one has."""

from pathlib import Path

import numpy as np
import pytest

import tests

pytestmark = pytest.mark.slow

CASES = """
    import numpy as np
    import pytest

    @pytest.fixture(params=["a", "b"])
    def kind(request):
        return request.param

    @pytest.mark.parametrize("x", [np.zeros(2), np.ones(2), 3, 4, 5])
    @pytest.mark.parametrize("y", range(6))
    @pytest.mark.sampled(10, each=False)
    def test_few(x, y, kind): pass

    @pytest.mark.parametrize("x", range(7))
    @pytest.mark.parametrize("y", range(4))
    @pytest.mark.sampled(28)
    def test_each(x, y): pass

    @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.exhaustive), 3])
    @pytest.mark.sampled(2, each=False)
    def test_some(x): pass

    @pytest.mark.parametrize("x", [1, 2])
    @pytest.mark.exhaustive
    def test_none(x): pass

    @pytest.mark.parametrize("x", [1, 2])
    def test_all(x): pass

    def test_alone(): pass
"""


@pytest.fixture
def ran(pytester, monkeypatch):
    """Return a function of options that returns the names of the cases that run, in their order."""
    monkeypatch.setenv("PYTHONPATH", str(Path(tests.__file__).parents[1]))
    pytester.makeconftest("pytest_plugins = ['tests.sampling']")
    pytester.makeini("[pytest]\naddopts = -q -m 'not exhaustive'\nmarkers =\n exhaustive\n sampled")
    pytester.makepyfile(CASES)

    def names(*options):
        result = pytester.inline_run("--collect-only", "-p", "no:cacheprovider", *options)
        calls = result.getcalls("pytest_collection_finish")
        return [item.name for item in calls[0].session.items]

    return names


def test_a_case_is_run_by_one_of_two_runs_and_in_its_order(ran):
    ordinary, exhaustive, both = ran(), ran("-m", "exhaustive"), ran("-m", "exhaustive or not exhaustive")
    assert len(both) == len(set(both)) == 5 * 6 * 2 + 7 * 4 + 3 + 2 + 2 + 1
    assert not set(ordinary) & set(exhaustive)
    assert set(ordinary) | set(exhaustive) == set(both)
    assert ordinary == [name for name in both if name in ordinary]
    assert ordinary == ran()


def test_as_many_are_sampled_as_is_said_and_each_value_is_met(ran):
    found = ran()
    of = {
        name: [x for x in found if x.startswith(f"test_{name}")] for name in ("few", "each", "some", "none")
    }
    assert {name: len(x) for name, x in of.items() if name != "each"} == {"few": 6, "some": 1, "none": 0}
    assert of["some"] != ["test_some[2]"]
    values = np.array([name.removesuffix("]").partition("[")[2].split("-") for name in of["each"]])
    assert [len(set(column)) for column in values.T] == [4, 7]
    assert len(values) < 4 * 7
    assert {"test_all[1]", "test_all[2]", "test_alone"} < set(found)


def test_a_quick_run_has_the_first_case(ran):
    assert [x for x in ran("--quick") if "few" in x] == ["test_few[a-0-x0]", "test_few[b-0-x0]"]
    assert [x for x in ran("--quick") if "all" in x] == ["test_all[1]"]
