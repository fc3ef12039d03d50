"""What the tests of pages share: one browser, and one page of an audit."""

import pytest

from mcfsim.report.audit_page import audit_page
from tests.browser.browser import chromium, missing, open_page, sized
from tests.models.pages import some_audits


@pytest.fixture(scope="session")
def driver():
    if (lacking := missing()) is not None:
        pytest.skip(lacking)
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def audits():
    return some_audits()


@pytest.fixture(scope="session")
def file(audits, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "audit.html"
    path.write_text(audit_page("model.safetensors", audits, {"ids": "int64 holds no weights"}), "utf-8")
    return path


@pytest.fixture
def page(driver, file):
    sized(driver, 1280, 900)
    open_page(driver, file)
    return driver
