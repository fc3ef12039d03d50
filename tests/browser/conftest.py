"""What tests of pages share: a browser, which a file of tests starts once."""

import pytest

from tests.browser.browser import chromium, missing


@pytest.fixture(scope="module")
def driver():
    if (lacking := missing()) is not None:
        pytest.skip(lacking)
    with chromium() as started:
        yield started
