"""The limit on what a case may cost."""

from pathlib import Path

import pytest

import tests

SPENDING = """
    import os, time, subprocess, sys, pytest

    def spend():
        begun = time.process_time()
        while time.process_time() - begun < 0.15:
            pass

    @pytest.fixture(scope="module")
    def shared():
        spend()

    {marker}
    def test_it({fixture}):
        {body}
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Return a function that runs a text of tests where a case may take a tenth of a second."""

    def run(text):
        monkeypatch.setenv("PYTHONPATH", str(Path(tests.__file__).parents[1]))
        pytester.makeconftest("import tests.costs; tests.costs.LIMIT = 0.1; pytest_plugins = ['tests.costs']")
        pytester.makeini("[pytest]\nmarkers =\n costly\n exhaustive\n gpu")
        pytester.makepyfile(text)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--costs", "3")

    return run


@pytest.mark.parametrize(
    ("marker", "fixture", "body", "allowed"),
    [
        ("", "", "spend()", False),
        ("", "", "pass", True),
        ("", "shared", "pass", True),
        ("", "shared", "spend()", False),
        ("", "", "subprocess.run([sys.executable, '-c', 'for i in range(10**7): pass'])", False),
        ("@pytest.mark.costly('why')", "", "spend()", True),
        ("@pytest.mark.exhaustive", "", "spend()", True),
    ],
)
def test_a_case_that_costs_too_much_fails(marker, fixture, body, allowed, run):
    result = run(SPENDING.format(marker=marker, fixture=fixture, body=body))
    result.assert_outcomes(passed=1, errors=not allowed)
    assert "seconds of a processor; 0.1 are allowed" in result.stdout.str() or allowed
    # What is shared is told, and apart.
    assert ("::shared" in result.stdout.str()) == (fixture == "shared")


@pytest.mark.parametrize("marker", ["costly", "costly('')", "costly(3)"])
def test_a_reason_is_given(marker, run):
    result = run(f"import pytest\n@pytest.mark.{marker}\ndef test_it(): pass")
    assert "costly without a reason" in result.stderr.str()
