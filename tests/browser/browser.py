"""A headless Chromium for tests: Debian's, by its own driver, with an empty profile and nothing to update."""

from __future__ import annotations

import shutil
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
    """Start a browser with a window of this size; what its console and its network say is kept.

    Yields
    ------
    selenium.webdriver.Chrome
    """
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
    """Open a file."""
    driver.get(path.resolve().as_uri())
