"""The guide's pictures of an audit: of the language model before training, as a page and as a figure.

Run it as ``python -m tests.browser.screenshot``. It writes ``figures/audit_page.png``, and ``figures/audit``
as ``.svg`` and ``.png``: what ``mcfsim audit language-model.safetensors --steps 300 --warmup 50
--weight-decay 0.1 --html audit.html --png audit.png`` makes of the initial weights.
"""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import mcfsim as mcf
from experiments.common import FIGURES
from mcfsim.models.audit import audit
from mcfsim.models.plan import forecast_in
from mcfsim.models.samples import scan
from mcfsim.models.weights import open_weights
from mcfsim.report.audit_report import at_rates, audit_figure, audit_page
from mcfsim.report.plotting import save
from mcfsim.storage.files import replacing
from tests.browser.browser import chromium, missing, open_page, sized
from tests.models.files import raw_safetensors
from tests.models.pages import BFLOAT16, plan

#: The window's width, and the tensor that is clicked.
WIDTH, TENSOR = 1280, "layer0.mlp.up"


def main() -> None:
    """Audit, draw, and take the screenshot."""
    named = [item.name for item in forecast_in(BFLOAT16)]
    made = plan(named, "bfloat16", (3e-4, 50, 0.1), 300, beta2=0.999)
    weights = mcf.get_problem("language-model").initial_parameters(0)
    with TemporaryDirectory() as folder, chdir(folder):
        path = Path("language-model.safetensors")
        raw_safetensors(path, {name: np.asarray(x, np.float32) for name, x in weights.items()})
        model = open_weights(path)
        samples = scan(model, 1024)
        found = audit(samples, made, BFLOAT16)
        with audit_figure(found) as figure:
            save(figure, FIGURES / "audit")
        page = Path("audit.html")
        page.write_text(audit_page(str(path), at_rates(samples, found), model.left_out), "utf-8")
        _shoot(page, FIGURES / "audit_page.png")


def _shoot(page: Path, picture: Path) -> None:
    if (lacking := missing()) is not None:
        raise SystemExit(f"no screenshot: {lacking}")
    with chromium(WIDTH) as driver:
        sized(driver, WIDTH, 3000)
        open_page(driver, page)
        (row,) = driver.find_elements("xpath", f"//table[@id='tensors']//tr[td[1]='{TENSOR}']")
        driver.execute_script("arguments[0].click()", row)
        end = driver.execute_script("return document.getElementById('tensor').getBoundingClientRect().bottom")
        sized(driver, WIDTH, round(end) + 24)
        with replacing(picture) as file:
            file.write(driver.get_screenshot_as_png())


if __name__ == "__main__":
    main()
