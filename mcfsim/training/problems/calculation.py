"""The arithmetic of a network, as data: the format of elements, accumulators of sums, recipes of layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mcfsim.backends.factory import arithmetic
from mcfsim.formats import Format, get_format
from mcfsim.kernels.carriers import FLOAT32, UnsupportedFormatError, holds
from mcfsim.products import Accumulator, Products, matmul
from mcfsim.recipes import RECIPES, Recipe
from mcfsim.recipes.named_recipes import recipe_data, recipe_from
from mcfsim.training.problems._transformer import BackPair

Array = NDArray[Any]

#: Matrix products by NumPy's library: fast, and with other last digits on another machine.
BLAS = "blas"
#: The fields of an accumulator in data; its rounding is the default.
_OF_PRODUCTS = ("format", "block", "order", "lanes", "products")


class Sums(StrEnum):
    """The ways to round sums of products.

    ``once``: the exact sum is rounded, as in the quire of a posit unit. ``each``: each product is rounded,
    and so is the sum after each product.
    """

    ONCE = "once"
    EACH = "each"

    def accumulator(self, fmt: Format | str) -> Accumulator:
        """Return the accumulator of a format that rounds so."""
        if self is Sums.ONCE:
            return Accumulator(get_format(fmt), block=None)
        return Accumulator(get_format(fmt), block=1, products=Products.ROUNDED)


@dataclass(frozen=True)
class Calculation:
    """Array operations that round every result into one format, to nearest even, and their accumulators.

    Parameters
    ----------
    format : Format or str or None
        The format of elements; float32 must hold its values. None computes in binary64, by NumPy alone.
    reductions : Format or str, optional
        The format of what the elements of a row share, such as a sum of exponentials or a mean square. It is
        one that float32 holds; see `mcfsim.functions.reductions`.
    products : Accumulator or "blas", optional
        How matrix products are summed, to nearest even, before they are rounded into the format of elements.
        By default the exact sum is rounded to float32. ``"blas"`` multiplies in float32 by NumPy's library:
        about twenty times as fast, but the last digits depend on machine, library and number of threads.
    recipe : Recipe or str or mapping, optional
        The recipe for the products of linear layers: an object, its name or data; see `mcfsim.recipes`. Their
        results are rounded into the format, too. Without a format all else is computed as without a
        calculation.

    Raises
    ------
    TypeError
        If `products` or `recipe` is of the wrong type.
    ValueError
        If a name is unknown, a format has the name of another one, or an accumulator rounds in another way.
    UnsupportedFormatError
        If float32 does not hold a format.

    Notes
    -----
    Overflow follows IEEE 754: it gives an infinity, or NaN in a format without infinities. Formats with
    neither, such as those of 4 and 6 bits, saturate, and so do posits and grids. NaN stays NaN. Elementary
    functions are correctly rounded, but in binary64, where they are NumPy's.
    """

    format: Format | str | None
    reductions: Format | str = "float32"
    products: Accumulator | str = field(default_factory=partial(Sums.ONCE.accumulator, "float32"))
    recipe: Recipe | str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.recipe is not None:
            object.__setattr__(self, "recipe", recipe_from(self.recipe))
        for name in ("format", "reductions"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, fmt := known(given))
                if not holds(FLOAT32, fmt):
                    raise UnsupportedFormatError(
                        f"{fmt} has numbers that float32, which gradients are handed on in, does not hold"
                    )
        if isinstance(self.products, Accumulator):
            known(self.products.format)
            if not self.products.rounding.standard:
                raise ValueError(
                    f"products are summed to nearest even, with gradual underflow and the overflow of IEEE "
                    f"754, not {self.products.rounding}"
                )
        elif self.products != BLAS:
            raise TypeError(f"products must be an Accumulator or {BLAS!r}, not {self.products!r}")
        object.__setattr__(self, "ar", emulated("float64" if self.format is None else self.format))

    #: The arithmetic of the elements.
    ar: Any = field(init=False, repr=False, compare=False)

    # -- as data ------------------------------------------------------------------------------------------
    @classmethod
    def of(cls, given: Calculation | Recipe | Mapping[str, Any] | str | None) -> Self | None:
        """Return a calculation given as an object, as data, or as text; None for None.

        Parameters
        ----------
        given : Calculation or Recipe or mapping or str or None
            Data are those of `settings`; for a recipe alone, ``{"recipe": ...}`` is enough. A text has up to
            four entries: the formats of elements, reductions and accumulators of products, and the number of
            products in a block, or ``all``: ``"bfloat16,float32,float32,16"``. The third may be ``blas``, and
            is then the last. The name of a recipe may stand before them, or alone: ``"nvfp4"``,
            ``"nvfp4,bfloat16,float32,blas"``. So ``"bf16"`` is the recipe; the format is ``"bfloat16"``.

        Raises
        ------
        TypeError, ValueError
            If it is none of these, or an entry is out of range.
        """
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, Recipe):
            return cls(None, recipe=given)
        if isinstance(given, str):
            entries = [entry.strip() for entry in given.split(",")]
            recipe = entries.pop(0) if entries[0] in RECIPES else None
            if not entries:
                return cls(None, recipe=recipe)
            blas = entries[2:3] == [BLAS]
            if len(entries) > 4 - blas or "" in entries:
                raise ValueError(
                    "a calculation in text is the format of elements, then that of reductions, then blas or "
                    "the format of products and how many make a block, like 'bfloat16,float32,float32,16', "
                    f"not {given!r}"
                )
            if recipe is None:
                _begun(entries[0])
            more: dict[str, Any] = dict(zip(("reductions", "products"), entries[1:3], strict=False))
            if "products" in more and not blas:
                block = _block(entries[3]) if entries[3:] else None
                more["products"] = Accumulator(get_format(entries[2]), block=block)
            return cls(entries[0], **more, recipe=recipe)
        if not isinstance(given, Mapping):
            raise TypeError(
                f"a calculation is a Calculation, its data, or a text like 'bfloat16,float32', not {given!r}"
            )
        if given.keys() == {"recipe"}:
            return cls(None, recipe=given["recipe"])
        products, known_names = given.get("products"), {item.name for item in fields(cls) if item.init}
        pairs = [(given, known_names if "recipe" in given else known_names - {"recipe"})]
        pairs += [(products, set(_OF_PRODUCTS))] if isinstance(products, Mapping) else []
        for data, names in pairs:
            if data.keys() != names:
                raise ValueError(
                    f"data of a calculation have the entries {sorted(names)}, not {sorted(data)}"
                )
        if isinstance(products, Mapping):
            products = Accumulator(**products)
        return cls(**{**given, "products": products})

    def settings(self) -> dict[str, Any]:
        """Return JSON-able data; `of` makes an equal calculation from them."""
        products: Any = self.products
        if isinstance(products, Accumulator):
            products = {name: _plain(getattr(products, name)) for name in _OF_PRODUCTS}
        found = {"format": _plain(self.format), "reductions": _plain(self.reductions), "products": products}
        return found if self.recipe is None else {**found, "recipe": recipe_data(recipe_from(self.recipe))}

    # -- operations ---------------------------------------------------------------------------------------
    def round(self, x: Array) -> Array:
        """Return numbers rounded into the format."""
        rounded: Array = self.ar.round(x)
        return rounded

    def product(self, a: Array, b: Array, added: Array | None = None) -> Array:
        """Return ``a @ b``, or ``added + a @ b`` with `added` as the first term of each sum."""
        if self.format is None:
            return a @ b if added is None else a @ b + added
        if isinstance(self.products, Accumulator):
            out = None if self.products.format == self.format else self.format
            product: Array = matmul(a, b, self.products, c=added, out_format=out)
            return product
        with np.errstate(all="ignore"):
            multiplied = np.matmul(a.astype(np.float32, copy=False), b.astype(np.float32, copy=False))
            return self.round(multiplied if added is None else multiplied + added)

    def multiplied(self, x: Array, weight: Array, name: str) -> tuple[Array, BackPair]:
        """Return ``x @ weight`` and its backward pass, for a layer of any name."""

        def backward(dy: Array) -> tuple[Array, Array]:
            return self.product(dy, weight.T), self.product(x.T, dy)

        return self.product(x, weight), backward

    def sub(self, a: Array, b: Array) -> Array:
        """Return ``a - b``; the operands' shapes broadcast."""
        difference: Array = self.ar.sub(*np.broadcast_arrays(a, b))
        return difference

    def div(self, a: Array, b: Array | int) -> Array:
        """Return ``a / b``; the operands' shapes broadcast."""
        divisor = b if isinstance(b, int) else np.broadcast_to(b, a.shape)
        quotient: Array = self.ar.div(a, divisor)
        return quotient

    def exp(self, a: Array) -> Array:
        """Return the exponential of each element."""
        exponential: Array = np.exp(a.astype(np.float64)) if self.format is None else self.ar.exp(a)
        return exponential


def emulated(fmt: Format | str) -> Any:
    """Return the arithmetic of a format; binary64 is NumPy's.

    Nothing is compiled: functions of hundreds of columns take longer to record than to compute.
    """
    if fmt == "float64":
        return arithmetic(fmt, backend="native")
    return arithmetic(fmt, compiled=False)


def known(fmt: Format | str) -> Format:
    """Return a format; raise ValueError if its name means another one."""
    found = get_format(fmt)
    try:
        same = get_format(found.name) == found
    except ValueError:
        same = False
    if not same:
        raise ValueError(f"{found!r} is not the format of that name, and a run's settings keep only the name")
    return found


def _plain(x: Any) -> Any:
    """Return a name for a format or an enumerated choice, and anything else as it is."""
    return str(x) if isinstance(x, StrEnum) else getattr(x, "name", x)


def _begun(entry: str) -> None:
    """Raise ValueError unless a calculation in text begins with the name of a format."""
    try:
        get_format(entry)
    except ValueError as error:
        raise ValueError(f"{error}; a calculation may begin with a recipe: {', '.join(RECIPES)}") from None


def _block(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise ValueError(f"a block of products is a number, or all, not {text!r}")
    return int(text)
