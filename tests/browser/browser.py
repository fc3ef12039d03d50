"""A headless Chromium for tests, Debian's, with an empty profile, nothing to update; what they do in it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def missing() -> str | None:
    """Return what a machine lacks for such tests; None if nothing."""
    for program, package in (("chromium", "chromium"), ("chromedriver", "chromium-driver")):
        if shutil.which(program) is None:
            return f"there is no {program} (Debian's package {package})"
    return None


@contextmanager
def chromium(width: int = 1280, height: int = 900) -> Iterator[Any]:
    """Start a browser with a window of this size; what its console and its network say is kept."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in (*_FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def sized(driver: Any, width: int, height: int) -> None:
    """Give the page this size, also where no window is so narrow."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def open_page(driver: Any, path: Path) -> None:
    """Open a file; what the logs hold is of this page from here on."""
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(path.resolve().as_uri())
    for _ in range(200):  # the data are unpacked meanwhile
        if texts(driver, "h1") != [""]:
            break
        time.sleep(0.05)


def each(driver: Any, selector: str, what: str) -> list[Any]:
    """Return what a JavaScript expression says of each node that a selector finds."""
    script = f"return [...document.querySelectorAll(arguments[0])].map((node) => {what})"
    return driver.execute_script(script, selector)


def texts(driver: Any, selector: str) -> list[str]:
    """Return the texts of elements as they stand in the page, untrimmed."""
    return each(driver, selector, "node.textContent")


def attributes(driver: Any, selector: str, name: str) -> list[str | None]:
    return each(driver, selector, f"node.getAttribute('{name}')")


def cells(driver: Any, table: str) -> list[list[str]]:
    return each(driver, f"#{table} tbody tr", "[...node.cells].map((cell) => cell.textContent)")


def click(driver: Any, selector: str) -> None:
    """Bring the one such element into view, and click it."""
    (found,) = driver.find_elements("css selector", selector)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found)
    found.click()
