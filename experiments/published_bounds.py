"""Published bounds of absolute rounding errors: FPBench's functions, each over its box, as tools state them.

Only bounds for the same algorithm, box and format are listed. FPTaylor's and PRECiSA's `jet` is left out,
in which one sign differs from `jetEngine`; of PRECiSA also `carbonGas`, `rigidBody2`, `sineOrder3` and
`sphere`, whose operations have another order or sign; of Daisy `i4` and `jetEngine`, whose boxes are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True)
class PublishedBounds:
    """The bounds of one source.

    Parameters
    ----------
    tool : str
    source : str
        Repository, commit and files.
    values : mapping of str to float
        Bounds by the names of `mcfsim.functions.FPBENCH`.
    format : str, optional
    constants : {"decimal", "binary64"}, optional
        Constants of the exact function: the decimals of the text, or the nearest numbers of binary64.
    tested : mapping of str to float, optional
        The largest errors that the source found by tests.
    """

    tool: str
    source: str
    values: Mapping[str, float]
    format: str = "float64"
    constants: Literal["decimal", "binary64"] = "decimal"
    tested: Mapping[str, float] = field(default_factory=dict)


def _read(text: str) -> Mapping[str, float]:
    """Return bounds by name."""
    pairs = (item.rsplit(maxsplit=1) for item in text.split(";"))
    return MappingProxyType({name.strip(): float(bound) for name, bound in pairs})


_FPTAYLOR = "https://github.com/soarlab/FPTaylor, efbbc83:"

#: The sharpest that each tool publishes for a function, the tool of more digits first.
PUBLISHED: tuple[PublishedBounds, ...] = (
    # Real inputs, so that their rounding counts; Solovyev et al., TOPLAS 41 (2018), describes the method.
    PublishedBounds(
        "FPTaylor",
        f"{_FPTAYLOR} tests/core/_tests.yml, tests/transcendental/_tests.yml (upper-bound)",
        _read(
            """doppler1 1.217604e-13; doppler2 2.226041e-13; doppler3 6.627360e-14;
            himmilbeau 1.000089e-12; kepler0 7.469401e-14; kepler1 2.863120e-13; kepler2 1.578175e-12;
            predatorPrey 1.585754e-16; rigidBody1 2.948753e-13; rigidBody2 3.606627e-11;
            sine 4.430439e-16; sineOrder3 5.937466e-16; sqroot 5.016453e-16; turbine1 1.669516e-14;
            turbine2 2.000935e-14; turbine3 9.574075e-15; verhulst 2.470696e-16; logexp 1.986969e-15;
            sphere 8.107781e-15"""
        ),
    ),
    # Constants are declared as variables of binary64.
    PublishedBounds(
        "FPTaylor",
        f"{_FPTAYLOR} tests/core/_tests.yml (upper-bound)",
        _read("carbonGas 4.962322e-9"),
        constants="binary64",
    ),
    # Inputs of binary64.
    PublishedBounds(
        "FPTaylor",
        f"{_FPTAYLOR} tests/micro/_tests.yml; nonlin2 of _tests-b.yml (upper-bound)",
        _read("sum 2.220447e-15; intro-example 1.666951e-16; nonlin1 1.666951e-16; nonlin2 1.422585e-14"),
    ),
    # Inputs of the format.
    PublishedBounds(
        "FPTaylor",
        f"{_FPTAYLOR} experiments/herbie/results-func.txt (Absolute 32: FPTaylor, Test)",
        _read("sqroot 2.813e-7; sineOrder3 3.604e-7"),
        format="float32",
        tested=_read("sqroot 2.406e-7; sineOrder3 1.943e-7"),
    ),
    PublishedBounds(
        "FPTaylor",
        f"{_FPTAYLOR} experiments/herbie/results-func.txt (Absolute 64: FPTaylor, Test)",
        _read("sqroot 5.239e-16; sineOrder3 6.715e-16"),
        tested=_read("sqroot 4.456e-16; sineOrder3 3.407e-16"),
    ),
    # Real inputs. The smallest of several analyses.
    PublishedBounds(
        "Daisy",
        "https://github.com/malyzajko/daisy, 34c8ddb: regression/reference/*_results.csv (Absolute error): "
        "dataflow_IA_AA, dataflow_AA_AA, dataflow_subdiv_IA_AA",
        _read(
            """doppler1 2.3763621502109143e-13; doppler2 5.079603543489174e-13;
            doppler3 1.0268837900545223e-13; rigidBody1 2.948752353404416e-13;
            rigidBody2 3.6066261088762985e-11; turbine1 3.920229126788285e-14;
            turbine2 4.3678654665297676e-14; turbine3 1.6532406090511927e-14;
            verhulst 2.671681581963907e-16; predatorPrey 1.649532346875309e-16;
            carbonGas 1.4038674432070464e-8; sine 6.436385198078558e-16;
            sineOrder3 1.0090405892234274e-15; sqroot 5.400129931698172e-16;
            bspline3 1.0639637319324417e-16; kepler0 9.698020164705667e-14;
            kepler1 3.789129800048209e-13; kepler2 2.025230945908637e-12; sphere 1.199040866595141e-14;
            logexp 2.1810703067292724e-13; intro-example 2.8421539240532025e-11;
            nonlin1 2.8421539240532025e-11; test05_nonlin1, r4 5.859611861436266e-7;
            test05_nonlin1, test2 1.387767678634466e-16; delta4 1.0002416672705295e-13;
            delta 1.980433433538388e-12; exp1x 1.2866171843683167e-13; exp1x_log 5.924136848500334e-13;
            x_by_xy 6.66133814775095e-16; hypot 5.059823004576086e-13; sum 3.552713678800501e-15;
            nonlin2 1.4320235509461297e-10; i6 1.2656542480726785e-14;
            himmilbeau 1.0000889005823412e-12"""
        ),
    ),
    # Inputs of binary64. Proved in Coq.
    PublishedBounds(
        "VCFloat",
        "https://github.com/VeriNum/vcfloat, 76eaac2: FPBench/*.v (CheckBound)",
        _read(
            """carbonGas 2.5e-8; doppler1 4.5e-13; doppler2 1.2e-12; doppler3 2.0e-13;
            himmilbeau 2.31e-12; jetEngine 2.13e3; kepler0 2.2005e-13; kepler1 1.644e-12;
            kepler2 6.2e-12; delta4 2.51e-13; delta 6.2e-12; predatorPrey 3.1e-16; rigidBody1 3.1e-13;
            rigidBody2 3.9e-11; intro-example 4.4e-16; nonlin1 4.4e-16; turbine1 7.9e-14;
            turbine2 1.2e-13; turbine3 6.1e-14; verhulst 2.33e-16"""
        ),
        constants="binary64",
    ),
    PublishedBounds(
        "PRECiSA",
        "https://github.com/nasa/PRECiSA, a3c4805: tools/createFPBenchTestsJSON.sh (stableError)",
        _read(
            """doppler1 2.64e-13; doppler2 4.14e-13; doppler3 1.22e-13; himmilbeau 1.00e-12;
            kepler0 1.10e-13; kepler1 4.63e-13; kepler2 2.44e-12; predatorPrey 1.84e-16;
            rigidBody1 2.95e-13; sine 1.13e-15; sqroot 6.83e-16; intro-example 5.72e-14;
            nonlin1 5.72e-14; turbine1 2.59e-14; turbine2 3.12e-14; turbine3 1.69e-14;
            verhulst 4.19e-16; logexp 6.77e-15"""
        ),
    ),
)


def sharpest(name: str, fmt: str) -> tuple[PublishedBounds, float] | None:
    """Return the smallest bound of a function in a format, to three digits, and its source."""
    there = [x for x in PUBLISHED if x.format == fmt and name in x.values]
    source = min(there, key=lambda x: float(f"{x.values[name]:.3g}"), default=None)
    return None if source is None else (source, source.values[name])
