"""The start of an optimizer: its vectors are made in memory or in files, and filled a block at a time."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mcfsim.convert import round_to
from mcfsim.formats import Format
from mcfsim.optim.declaration import Declaration, components
from mcfsim.optim.groups import GroupBoundaries, Groups, check_groups
from mcfsim.optim.layout import Layout, StateSlices, Tensors, parts_of
from mcfsim.optim.state import State, remaining
from mcfsim.optim.strategies import Addition, Roles, Strategy
from mcfsim.optim.vectors import Split, Vector, form, write
from mcfsim.protocol import Arithmetic
from mcfsim.rounding import Mode
from mcfsim.scaled import ScaledFormat
from mcfsim.storage.files import OutputError, Pathlike, folder_of, telling

# -- vectors in files, mapped into memory -----------------------------------------------------------------
SUFFIX = ".npy"
#: Number of bytes that are written at once if the space of a file cannot be reserved.
_AT_ONCE = 1 << 24
#: Largest size of a file's header, in bytes.
_HEADER = 1 << 12
#: Errors of file systems that cannot reserve space.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def new_maps(
    folder: Pathlike, forms: Mapping[str, tuple[int, np.dtype[Any]]]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Make a file of zeros for each vector, and map all into memory; if the block fails, remove them.

    Parameters
    ----------
    folder : path
        The folder for the files. It is made if needed; its parent folder must exist.
    forms : mapping of str to (int, dtype)
        The number of elements of each vector, and their dtype. Its file is ``NAME.npy``, for `numpy.load`.

    Yields
    ------
    dict of str to array
        The vectors, which keep their files open. The system decides when it writes changes to the files.

    Raises
    ------
    OutputError
        If the parent folder does not exist, the disk has too little room, or a file cannot be made; or if
        the folder is no folder, or already has one of the files. No new files are left then.
    """
    place = folder_of(folder).resolve()
    paths = {name: place / f"{name}{SUFFIX}" for name in forms}
    made_folder = _check(place, paths)
    needed = sum(size * dtype.itemsize + _HEADER for size, dtype in forms.values())
    if (free := shutil.disk_usage(place.parent if made_folder else place).free) < needed:
        raise OutputError(f"{place}: {needed} bytes are needed, and {free} are free on this disk")
    made: list[Path] = []
    try:
        if made_folder:
            with telling(place):
                place.mkdir()
        for name, (size, dtype) in forms.items():
            with telling(paths[name]), open(paths[name], "xb") as file:
                made.append(paths[name])
                _fill_file(file, size, dtype)
        yield {name: np.asarray(np.lib.format.open_memmap(path, "r+")) for name, path in paths.items()}
    except BaseException:
        for path in made:
            with suppress(OSError):
                path.unlink()
        if made_folder:
            with suppress(OSError):  # somebody else has put something there
                place.rmdir()
        raise


def _check(place: Path, paths: Mapping[str, Path]) -> bool:
    """Return whether the folder is yet to be made; raise OutputError if the files cannot be made in it."""
    if not place.exists():
        if not place.parent.is_dir():
            raise OutputError(f"cannot make the folder {place}: there is no folder {place.parent}")
        return True
    if not place.is_dir():
        raise OutputError(f"{place} is no folder")
    if found := [path.name for path in paths.values() if path.exists() or path.is_symlink()]:
        raise OutputError(f"the folder {place} has {', '.join(found)}: name a new one, or remove them")
    return False


def _fill_file(file: IO[bytes], size: int, dtype: np.dtype[Any]) -> None:
    """Write a header, and reserve or write zeros for the vector, so that the disk has room for it."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, header)
    file.flush()
    start, count = file.tell(), size * dtype.itemsize
    if count and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), start, count)
        except OSError as problem:
            if problem.errno not in _UNSUPPORTED:
                raise
        else:
            return
    zeros = bytes(_AT_ONCE)
    for done in range(0, count, _AT_ONCE):
        file.write(zeros[: count - done])


# -- the first numbers ------------------------------------------------------------------------------------
Array = NDArray[Any]

#: Number of elements that are read and rounded at once.
AT_ONCE = 1 << 18
#: Name of the gradient's vector in a folder.
_GRADIENT = "gradient"
#: Suffix of a vector's name in the name of its scales.
_SCALES = "_scales"

#: Formats and groups of the vectors whose numbers share scales, by the vector's name.
_Grouped = dict[str, tuple[ScaledFormat, GroupBoundaries]]


def start(
    hyper: Declaration,
    strategy: Strategy,
    roles: Roles,
    layout: Layout,
    parameters: Tensors,
    *,
    packed: bool,
    folder: Pathlike | None,
) -> tuple[State, Array | None]:
    """Return the state before the first step and, if it lies in a folder, a vector for gradients there.

    The parameter, or a master copy and from that the parameter (`from_master`), is rounded to nearest even,
    whatever the rounding of steps; all else starts from zero.
    """
    _, blocks = layout.blocks(parameters, AT_ONCE)  # raises its errors before anything is made
    of, counts = roles.stored, components(hyper, strategy)
    # The arithmetic of each vector, by name: the field of `State` and the number of the component.
    vectors = {f"{label}{place}": of[label] for label, n in counts.items() for place in range(n)}
    parts = parts_of(hyper, layout)
    sizes = {name: parts[name[0]].size if name[0] in parts else layout.size for name in vectors}
    forms = {name: (sizes[name], form(role.format, packed=packed)) for name, role in vectors.items()}
    fmt = roles.model.format
    split = packed and _shares(strategy) and forms["parameter0"][1].kind == "u"
    if split and fmt is not None:
        forms["extra0"] = layout.size, Split.form(fmt)
    grouped = _grouped(strategy, vectors, parts) if packed else {}
    for name, (kept, edges) in grouped.items():
        codes, scales = Groups.forms(kept)
        forms |= {name: (sizes[name], codes), f"{name}{_SCALES}": (edges.count, scales)}
    place: AbstractContextManager[dict[str, Array]]
    if folder is None:
        place = nullcontext({name: np.zeros(*item) for name, item in forms.items()})
    else:
        forms[_GRADIENT] = layout.size, form(strategy.gradient.format, packed=packed)
        place = new_maps(folder, forms)
    with place as made:
        whole = _whole(made, vectors, split, grouped)
        _fill(whole, vectors, strategy, roles, blocks)
    state = [tuple(whole[f"{label}{place}"] for place in range(n)) for label, n in counts.items()]
    return State(*state), made.get(_GRADIENT)


def receive(layout: Layout, tensors: Tensors, fmt: Format, out: Array | None, *, packed: bool) -> Array:
    """Return tensors as one vector, rounded to nearest even into a format; in `out` if it is given."""
    taken, blocks = layout.blocks(tensors, AT_ONCE)
    if out is None:
        out = np.empty(layout.size, form(fmt, packed=True) if packed else _rounded(taken, fmt))
    for block, x in blocks:
        write(out[block], round_to(x, fmt), fmt)
    return out


@lru_cache(maxsize=64)
def _rounded(dtype: np.dtype[Any], fmt: Format) -> np.dtype[Any]:
    """Return the dtype of numbers of a dtype once they are rounded into a format."""
    return np.asarray(round_to(np.empty(0, dtype), fmt)).dtype


def _shares(strategy: Strategy) -> bool:
    """Return whether the parameter holds the leading bits of its master copy."""
    return strategy.extra is not None and strategy.extra.shared


def _grouped(strategy: Strategy, vectors: dict[str, Any], parts: dict[str, StateSlices]) -> _Grouped:
    """Return format and groups of each vector whose numbers share scales, by the vector's name."""
    found: _Grouped = {}
    for label, stored in strategy.tensors.items():
        if stored.scaled is not None and f"{label}0" in vectors:
            check_groups(strategy.name, label, stored.scaled)
            assert isinstance(stored.scaled, ScaledFormat)
            assert isinstance(stored.scaled.block, int)
            edges = GroupBoundaries(parts[label].every(), stored.scaled.block)
            found[f"{label}0"] = stored.scaled, edges
    return found


def _whole(
    made: dict[str, Array], vectors: dict[str, Any], split: bool, grouped: _Grouped
) -> dict[str, Vector]:
    """Return the vectors by name; some wrap the arrays in which their numbers are stored.

    A `Split` master copy wraps the bits that follow the parameter's codes, and a `Groups` moment wraps its
    codes and scales.
    """
    whole: dict[str, Vector] = {name: made[name] for name in vectors}
    for name, (kept, edges) in grouped.items():
        fmt = vectors[name].format
        whole[name] = Groups.whole(made[name], made[f"{name}{_SCALES}"], kept, fmt, edges)
    if split:
        model = vectors["parameter0"]
        rounded = model.rounding.mode is Mode.NEAREST_AWAY
        whole["extra0"] = Split.beside(made["parameter0"], made["extra0"], model.format, rounded=rounded)
    return whole


def _fill(
    made: dict[str, Vector],
    vectors: dict[str, Any],
    strategy: Strategy,
    roles: Roles,
    blocks: Iterable[tuple[slice, Array]],
) -> None:
    """Write the numbers at the start to vectors of zero bytes."""
    given = ["parameter0", *(["extra0"] if strategy.addition is Addition.MASTER else [])]
    for name, role in vectors.items():
        vector = made[name]
        if isinstance(vector, Groups):  # any scale will do
            element = vector.scaled.element
            _put_zero(vector.codes, round_to(np.zeros(1), element), element)
        elif name not in given:
            _put_zero(vector, _nearest(role, np.zeros(1)), role.format)
    for block, x in blocks:
        numbers: tuple[Array, ...] = (_nearest(vectors[given[-1]], x),)
        if strategy.addition is Addition.MASTER:
            numbers = from_master(strategy, roles, *numbers)
        for name, made_of in zip(given, numbers, strict=True):
            write(made[name][block], made_of, vectors[name].format)


def from_master(strategy: Strategy, roles: Roles, master: Array) -> tuple[Array, Array]:
    """Return the parameter of a master copy, and the part of the master copy that is kept.

    The parameter is rounded to nearest even, whatever the rounding of steps; one that shares bits with its
    master copy is rounded as in a step.
    """
    model: Any = roles.model
    bits = strategy.extra.remainder if strategy.extra else None
    theta = round_to(master, model.format, model.rounding) if _shares(strategy) else _nearest(model, master)
    if bits is not None and model.format is not None:
        master = np.asarray(remaining(roles.parameter, model.format, bits, master, theta))
    return theta, master


def _put_zero(vector: Any, zero: Array, fmt: Format | None) -> None:
    """Fill a vector of zero bytes with a format's zero; for most formats, it already holds zeros."""
    one = np.empty(1, vector.dtype)
    write(one, zero, fmt)
    if fmt is None or any(one.tobytes()):
        vector[...] = one[0]


def _nearest(role: Arithmetic, x: Array) -> Array:
    return np.asarray(role.round(x) if role.format is None else round_to(x, role.format))
