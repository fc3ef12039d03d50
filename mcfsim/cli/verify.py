"""The command that tests theorems on operands, proves them, and examines certificates."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from mcfsim.cli.application import Place, command, given, telling_how_to_go_on
from mcfsim.report import terminal
from mcfsim.report.terminal import output_width, print_legend, print_rows, say, say_text

if TYPE_CHECKING:
    from mcfsim.theorems.check import Check
    from mcfsim.theorems.device import Device
    from mcfsim.theorems.statement import Theorem

#: Options that --check takes.
_OF_CHECK = ("--check", "--limit", "--samples", "--seed")
#: Why options of trials are no use with --every-p and --upper.
_OF_EVERY = "tries no operands, and speaks of every precision"


@command(epilog=terminal.help_text(terminal.VERIFY, terminal.LISTING))
def verify(
    theorems: Annotated[
        list[str] | None,
        Argument(
            metavar="[ID]...",
            help="Statements by id, or module:NAME for your own; all by default. With --list, patterns.",
        ),
    ] = None,
    format: Annotated[
        list[str] | None,
        Option(
            help="Format; repeat it for several.",
            show_default="float8_e4m3fn, float8_e5m2, bfloat16, float16",
        ),
    ] = None,
    rounding: Annotated[
        list[str] | None,
        Option(
            help="Mode, or 'every' for every one that a statement is claimed for; repeat it for several.",
            show_default="nearest_even, or the first that a statement is claimed for",
        ),
    ] = None,
    extent: Annotated[
        str, Option(help="core: operands that stand for all by stated reductions. all: no reductions.")
    ] = "core",
    limit: Annotated[
        int | None, Option(min=1, help="The most cases of a core of double words.", show_default="1.1e9")
    ] = None,
    samples: Annotated[
        int | None, Option(min=0, help="Random cases where a core is not all.", show_default="2^22")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the random cases.")] = 0,
    workers: Annotated[
        int | None,
        Option(
            min=1,
            help="Threads, or processes if more than 4.",
            show_default="as many as cores, if it takes long",
        ),
    ] = None,
    device: Annotated[
        str,
        Option(help="cpu, or cuda: this GPU tries statements of many cases whose algorithm can be recorded."),
    ] = "cpu",
    dask: Annotated[str | None, Option(help="Dask scheduler, such as tcp://host:8786.")] = None,
    journal: Annotated[
        Path | None,
        Place.WRITTEN,
        Option(help="Where finished work is kept.", show_default="in the user's folder"),
    ] = None,
    resume: Annotated[
        bool, Option("--resume/--fresh", help="Continue from the journal, or try everything again.")
    ] = True,
    output: Annotated[Path | None, Place.FOLDER, Option(help="Folder for the certificates, as JSON.")] = None,
    listing: Annotated[
        bool,
        Option(
            "--list",
            help="List statements and their sources: all, or those whose id matches, such as 'dw_*' or sum.",
        ),
    ] = False,
    every_p: Annotated[
        bool,
        Option(
            "--every-p",
            help="Compute results, error and the limit of the error exactly, at every precision p at once, "
            "for statements whose operands are polynomials in u = 2^-p.",
        ),
    ] = False,
    check: Annotated[
        list[Path] | None,
        Place.READ,
        Option(
            help="Examine a certificate: try its witnesses again and, of each part, random cases by the "
            "oracle (--samples, --seed) and all cases by the emulator if they are few (--limit). Repeat it "
            "for several. A certificate of --every-p is decided anew, and tried at every p up to 60.",
        ),
    ] = None,
    theorem: Annotated[
        str | None,
        Option(
            metavar="MODULE:NAME",
            help="With --check, the statement if it is your own, from a module in this folder or on Python's "
            "path.",
        ),
    ] = None,
    upper: Annotated[
        bool,
        Option(
            "--upper",
            help="Prove statements about sums for every precision at once, by a solver (mcfsim[solver]).",
        ),
    ] = False,
    seconds: Annotated[
        int | None,
        Option(min=1, help="Time limit for each statement of --upper.", show_default="600"),
    ] = None,
) -> None:
    """Try statements on operands; exit status 1 if one fails that should hold, or holds that should fail."""
    options = given({"limit": limit, "samples": samples, "seed": seed})
    if theorem is not None and not check:
        raise ValueError("--theorem says what a certificate is about: give --check, too, or the name alone")
    if every_p and upper:
        raise ValueError("--every-p and --upper answer different questions: ask one at a time")
    said = {
        **{"--output": output, "--journal": journal, "--format": format, "--rounding": rounding},
        **{"--limit": limit, "--samples": samples, "--seed": seed or None, "--workers": workers},
        **{"--extent": None if extent == "core" else extent, "--device": None if device == "cpu" else device},
        **{"--dask": dask, "--fresh": None if resume else True, "--seconds": seconds, "--check": check},
        **{"--every-p": every_p or None, "--upper": upper or None},
    }
    if listing:
        _refuse("--list tries nothing", said)
        good = _list(theorems or ["*"])
    elif check:
        said["an ID"] = theorems or None
        _refuse("--check writes nothing, and certificates say what they are of", said, _OF_CHECK)
        good = _examine(check, theorem, options)
    elif every_p:
        _refuse(f"--every-p {_OF_EVERY}", said, ("--every-p", "--rounding", "--output"))
        good = _prove(theorems or [], rounding or [], output)
    elif upper:
        _refuse(f"--upper {_OF_EVERY}", said, ("--upper", "--seconds"))
        good = _bound(theorems or [], given({"seconds": seconds}))
    else:
        if seconds is not None:
            raise ValueError("--seconds is the longest for each statement of --upper, and needs it")
        from mcfsim.theorems.device import find_device
        from mcfsim.theorems.parts import Selection
        from mcfsim.theorems.verification import plan

        found = find_device(device, workers=workers, dask=dask)
        selection = Selection(extent, **options)  # type: ignore[arg-type]  # which is looked at there
        planned = plan(_statements(theorems), format, rounding, selection)
        good = _certify(planned, output, journal, resume, workers=workers, dask=dask, device=found)
    if not good:
        raise typer.Exit(1)


def _statements(names: list[str] | None) -> list[Theorem | str]:
    """Return ids of the catalogue as they are, and the statements that ``module:NAME`` names stand for."""
    from mcfsim.theorems.identity import is_own, own_theorem

    return [own_theorem(name) if is_own(name) else name for name in names or []]


def _list(patterns: list[str]) -> bool:
    """Print statements and their sources, and a legend of signs if they are laid out for a width."""
    from mcfsim.report.tables import theorem_table
    from mcfsim.theorems import THEOREMS
    from mcfsim.theorems.logic.notation import LEGEND
    from mcfsim.theorems.verification import matching

    chosen = theorem_table(THEOREMS[name] for name in matching(patterns))
    print_rows(chosen, terminal.LISTING, ("statement", "source"), numbers=False)
    if (width := output_width()) is not None:
        print_legend(LEGEND, width)
    return True


def _certify(
    planned: Iterable[Check],
    output: Path | None,
    journal: Path | None,
    resume: bool,
    *,
    workers: int | None,
    dask: str | None,
    device: Device | None,
) -> bool:
    """Verify, print and save; return whether every verdict is as expected."""
    from mcfsim.kernels.carriers import UnsupportedFormatError
    from mcfsim.report.tables import certificate_table
    from mcfsim.storage.files import check_outputs
    from mcfsim.storage.sweeps.sweep import Sweep
    from mcfsim.theorems.identity import identity_of
    from mcfsim.theorems.verification import run, sort_out, workers_for

    checks, refused = sort_out(planned)
    names = [f"{item.theorem.name}-{item.format}-{item.rounding.mode}" for item in checks]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"there are two statements for the certificate {twice}: give them one by one")
    places = {f"certificate {name}": output / f"{name}.json" for name in sorted(names) if output}
    check_outputs({"--journal": journal, **places})
    path = journal
    if lacking := [item.theorem for item in checks if not identity_of(item.theorem)]:
        # If --journal was given, `run` raises an error that says so.
        say(f"No journal is kept: {identity_of(lacking[0]).lack}.", err=True)
    elif path is None:
        path = _default_journal()
    certificates = []
    many, show = workers or (1 if device else workers_for(checks)), sys.stderr.isatty()
    with (
        telling_how_to_go_on(path, "no journal was kept, so the same command begins anew."),
        Sweep(many, dask=dask, journal=path, resume=None if path is None else resume, progress=show) as sweep,
    ):
        for certificate in run(checks, sweep, device=device):
            certificates.append(certificate)
            if output is not None:
                certificate.save(output / f"{certificate.name}.json")
    if sweep.resumed:
        say(f"{sweep.resumed:,} cases are from the journal {path}; --fresh tries them again", err=True)
    if certificates:
        print_rows(certificate_table(certificates), terminal.VERIFY, ("at", "counterexample"))
    for one, reason in refused:
        say(f"refused: {one.theorem.name}, {one.format}, {one.rounding.mode}: {reason}")
    # A statement that does not apply is no failure; one without a case is.
    good = all(certificate.as_expected for certificate in certificates)
    return good and all(isinstance(reason, UnsupportedFormatError) for _, reason in refused)


def _examine(paths: list[Path], name: str | None, options: dict[str, Any]) -> bool:
    """Print errors in certificates, and how much was tried again; return whether there are no errors."""
    from mcfsim.theorems.every_p import recheck
    from mcfsim.theorems.every_p.family_certificate import is_every
    from mcfsim.theorems.examination import examine
    from mcfsim.theorems.identity import own_theorem

    theorem = None if name is None else own_theorem(name)
    good = True
    for path in paths:
        if is_every(path):
            problems = recheck(path, theorem)
            said = "; ".join(problems) or "nothing is wrong: proved again, and the same at every p up to 60"
        else:
            found = examine(path, theorem, **options)
            problems, said = list(found.problems), str(found)
        first, *more = said.splitlines()
        say(f"{path}: {first}", *more)
        good &= not problems
    return good


def _prove(names: list[str], roundings: list[str], output: Path | None) -> bool:
    """Prove, print and save results of families for every precision; return whether they are as expected."""
    from mcfsim.storage.sweeps.progress import one_by_one
    from mcfsim.theorems.catalogue import named
    from mcfsim.theorems.every_p import EveryCertificate, covering
    from mcfsim.theorems.every_p.family_proof import with_families

    asked = []
    for theorem in map(named, _statements(names)) if names else with_families():
        modes: list[str | None] = []
        for name in roundings:
            modes += sorted(theorem.modes) if name == "every" else [name]
        asked += [(theorem, mode) for mode in dict.fromkeys(modes or [None])]
    good = True
    told = "no more is proved; give names to prove those alone."
    with telling_how_to_go_on(None, told):
        for proofs in one_by_one(starmap(covering, asked), len(asked), "proving"):
            for proof in proofs:
                say_text(f"{proof}\n")
                certificate = EveryCertificate.of(proof)
                if output is not None:
                    certificate.save(output / f"{certificate.name}.json")
                good &= proof.as_expected
    return good


def _refuse(what: str, options: dict[str, Any], of_use: Sequence[str] = ()) -> None:
    """Raise ValueError if an option is given that this use of the command ignores."""
    if found := [name for name in given(options) if name not in of_use]:
        raise ValueError(f"{what}: {found[0]} is no use")


def _bound(names: list[str], options: dict[str, Any]) -> bool:
    """Print the solver's answers; return whether it proves exactly the statements that hold."""
    from mcfsim.storage.sweeps.progress import one_by_one
    from mcfsim.theorems import THEOREMS
    from mcfsim.theorems.solver import ASSUMED, Found, check_readable, prove_all

    check_readable(names)
    good = True
    with telling_how_to_go_on(None, "no more is proved; give names to prove those alone."):
        for answer in one_by_one(prove_all(names, **options), len(names), "proving"):
            say(str(answer))
            good &= (answer.found is Found.PROVED) == THEOREMS[answer.statement].holds
            good &= answer.found is not Found.VACUOUS
    say(f"Assumed: {ASSUMED}. What is not proved need not be false.")
    return good


def _default_journal() -> Path | None:
    """Return the journal's path in the user's folder; if none can be kept there, say why and return None."""
    from mcfsim.storage.sweeps.journal import VERSION, Journal

    path = Path(typer.get_app_dir("mcfsim")) / f"verify-{VERSION}.sqlite"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Journal(path).close()
    except (OSError, ValueError) as problem:
        say(f"No journal is kept ({problem}); --journal FILE keeps one.", err=True)
        return None
    return path
