"""The limit on what a case may cost."""

import re
from pathlib import Path

import pytest

import tests

pytestmark = pytest.mark.slow

CASES = """
    import subprocess, sys, time
    import pytest

    def spend():
        begun = time.process_time()
        while time.process_time() - begun < 0.2:
            pass

    @pytest.fixture(scope="module")
    def shared():
        spend()
        yield
        spend()

    @pytest.fixture
    def own():
        yield
        spend()

    def test_cheap_by_itself(shared):
        pass

    def test_dear_by_itself(shared):
        spend()

    def test_dear_at_its_end(own):
        pass

    def test_dear_by_a_process():
        subprocess.run([sys.executable, '-c', 'for i in range(10**7): pass'])

    @pytest.mark.costly("it is said why")
    def test_cheap_as_it_may():
        spend()

    def test_cheap_but_for_what_it_imports_first():
        sys.modules |= {f"imported{i}": sys for i in range(600)}
        spend()

    def test_dear_though_it_imports_a_little():
        sys.modules |= {f"also{i}": sys for i in range(100)}
        spend()

    def test_cheap_beside_the_end_of_what_is_shared():
        pass
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Return a function that runs a text of tests where a case may take .08 seconds."""
    monkeypatch.setattr("tests.costs._slowness", lambda: 1.0)

    def run(text):
        monkeypatch.setenv("PYTHONPATH", str(Path(tests.__file__).parents[1]))
        pytester.makeconftest("pytest_plugins = ['tests.costs']")
        pytester.makeini("[pytest]\nmarkers =\n costly\n exhaustive\n gpu")
        pytester.makepyfile(text)
        options = ("-p", "no:cacheprovider", "-rE", "--costs", "9", "--cost-limit", "0.08")
        return pytester.runpytest_inprocess(*options)

    return run


@pytest.mark.costly("tests are run in a process of their own")
def test_a_case_that_costs_too_much_fails_and_what_is_shared_is_counted_apart(run):
    shown = run(CASES).stdout.str()
    failed = re.findall(r"^ERROR \S+::(\w+)", shown, re.MULTILINE)
    assert failed == [
        "test_dear_by_itself",
        "test_dear_at_its_end",
        "test_dear_by_a_process",
        "test_dear_though_it_imports_a_little",
    ]
    told = r"^\S+::(\w+) took 0\.[1-9] seconds of a processor; 0\.08 are allowed"
    assert re.findall(told, shown, re.MULTILINE) == failed
    for line in (r"0 \S+::shared", r"0 \S+::what is left at the end", r"1 \S+::test_dear_by_itself"):
        assert re.search(rf"^ +0\.[1-9] +{line}$", shown, re.MULTILINE), line


@pytest.mark.parametrize("marker", ["costly", "costly('')", "costly(3)"])
@pytest.mark.sampled(3, each=False)
def test_a_reason_is_given(marker, run):
    result = run(f"import pytest\n@pytest.mark.{marker}\ndef test_it(): pass")
    assert "costly without a reason" in result.stderr.str()
