"""A digest of all that a function computes with: whatever it holds, calls and reads, directly or not."""

from __future__ import annotations

import builtins
import copyreg
import dis
import hashlib
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from fractions import Fraction
from functools import _lru_cache_wrapper, cached_property, lru_cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from mcfsim.storage.sweeps.installed import is_random, named, no_state, package_of

#: What these do depends on data that the walk does not see.
_OUTSIDE = frozenset({"__import__", "eval", "exec", "globals", "input", "open"})
_OUTSIDE_FUNCTIONS = [getattr(builtins, name) for name in sorted(_OUTSIDE)]
#: Attributes of a class or function that do not affect what it does, or are added when it is used.
# fmt: off
_NO_MATTER = frozenset({
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__",
    "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__", "__module__",
    "__orig_bases__", "__parameters__", "__qualname__", "__slotnames__", "__static_attributes__",
    "__type_params__", "__weakref__", "_abc_impl"
})
# fmt: on
#: Numbers and strings, told apart by value and type: True differs from 1, and -0.0 from 0.0.
_ATOMS: dict[type, Callable[[Any], str]] = {
    **dict.fromkeys((type(None), bool, type(...), type(NotImplemented)), repr),
    int: hex,
    Fraction: lambda x: f"{x.numerator:x}/{x.denominator:x}",
    float: float.hex,
    complex: lambda x: f"{x.real.hex()} {x.imag.hex()}",
    str: str,
    bytes: bytes.hex,
    bytearray: lambda x: bytes(x).hex(),
}


class UnnamedError(ValueError):
    """There is no digest, because something with an unknowable state is reached."""


def digest(things: Iterable[tuple[str, Any]]) -> str:
    """Return the SHA-256 of all that some objects compute with; it is the same in every process.

    Functions are taken by value: code, defaults, closure, attributes, and the globals that they read. For a
    module, only the names used count. Functions and classes of installed packages are taken by name, their
    packages by version, and this package by the digest of its source.

    Parameters
    ----------
    things : iterable of (str, Any)
        Each object with its name.

    Raises
    ------
    UnnamedError
        If an object is reached whose state cannot be known: an open file, a lock, a random generator, a live
        iterator.
    """
    walk = _Walk()
    try:
        for name, thing in things:
            walk.part(name, thing)
        walk.modules()
    except RecursionError:
        raise UnnamedError(f"{walk.place()} is nested too deeply") from None
    return walk.hash.hexdigest()


class _Walk:
    """A depth-first walk that numbers each mutable object when first met, and later uses the number."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256(f"python {sys.version_info[:3]} ".encode())
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no address is used twice
        self._tuples: dict[int, bytes] = {}
        self._met = 0  # how often a numbered object was met
        self._path: list[str] = []
        #: Names and strings in the code: possible attributes of modules.
        self._names: set[str] = set()
        self._modules: dict[str, types.ModuleType] = {}

    def place(self) -> str:
        """Return the current place of the walk, in words."""
        return " of ".join(reversed(self._path))

    def part(self, name: str, x: Any) -> None:
        """Walk through a named part of the current object."""
        self._path.append(name)
        self._say("part", name)
        self._walk(x)
        self._path.pop()

    def modules(self) -> None:
        """Walk through the module attributes that are used by name, and through all they reach."""
        done: set[tuple[str, str]] = set()
        while True:
            left = sorted(
                (module, name)
                for module, found in self._modules.items()
                for name in self._names & vars(found).keys()
                if (module, name) not in done
            )
            if not left:
                return
            for module, name in left:
                done.add((module, name))
                x = vars(self._modules[module])[name]
                self._path = [f"{module}.{name}"]
                if not package_of(module):
                    self.part("value", x)
                elif isinstance(x, types.ModuleType):
                    self._walk(x)
                elif is_random(x) or is_random(getattr(x, "__self__", None)):
                    self._refuse("draws at random")
            self._path = []

    def _refuse(self, why: str) -> None:
        raise UnnamedError(f"{self.place()} {why}")

    def _say(self, kind: str, text: str = "") -> None:
        data = text.encode(errors="surrogatepass")
        self.hash.update(f"{kind} {len(data)} ".encode() + data)

    @contextmanager
    def _apart(self) -> Iterator[list[bytes]]:
        """Hash the walk in a ``with`` block separately, and append its digest to the yielded list."""
        outer, self.hash = self.hash, hashlib.sha256()
        found: list[bytes] = []
        yield found
        found.append(self.hash.digest())
        self.hash = outer

    def _walk(self, x: Any) -> None:
        kind = type(x)
        if text := _ATOMS.get(kind):
            self._say(kind.__name__, text(x))
        elif kind is tuple:
            self._tuple(x)
        elif isinstance(x, types.CodeType):
            self._code(x)
        elif isinstance(x, types.ModuleType):
            self._say("module", f"{x.__name__} {package_of(x.__name__)}")
            self._modules[x.__name__] = x
        elif name := named(x):
            if x in _OUTSIDE_FUNCTIONS:
                self._refuse(f"is {x.__name__}, which may read anything")
            self._say("named", name)
        else:
            self._met += 1
            if (number := self._numbers.get(id(x))) is not None:
                self._say("again", str(number))
                return
            self._numbers[id(x)] = len(self._numbers)
            self._alive.append(x)
            self._say("a", kind.__name__)
            self._numbered(x)

    def _numbered(self, x: Any) -> None:
        if isinstance(x, types.FunctionType):
            self._function(x)
        elif isinstance(x, type):
            self._class(x)
        elif isinstance(x, partial) and type(x) is partial:
            self._parts({"function": x.func, "arguments": x.args, "keywords": x.keywords})
        elif isinstance(x, types.MethodType | types.BuiltinMethodType | types.MethodWrapperType):
            self._say("method", x.__name__)
            self._parts({"instance": x.__self__, "function": getattr(x, "__func__", None)})
        elif isinstance(x, range | slice):
            self._parts({name: getattr(x, name) for name in ("start", "stop", "step")})
        elif isinstance(x, staticmethod | classmethod):
            self._parts({"function": x.__func__})
        elif isinstance(x, property):
            self._parts({name: getattr(x, name) for name in ("fget", "fset", "fdel")})
        elif isinstance(x, cached_property):
            self._parts({"function": x.func})
        elif isinstance(x, _lru_cache_wrapper):
            self._parts({"function": x.__wrapped__, "parameters": x.cache_parameters()})
        elif type(x) in (list, dict, set, frozenset):
            self._content(x)
        elif isinstance(x, types.MappingProxyType):
            self._content(dict(x))
        elif isinstance(x, np.dtype | np.generic) or type(x) is np.ndarray:
            self._numbers_of_numpy(x)
        elif isinstance(x, Enum):
            self._say("member", x.name)
            self._parts({"class": type(x), "value": x.value})
        else:
            self._instance(x)

    def _parts(self, parts: dict[str, Any]) -> None:
        for name, x in parts.items():
            self.part(name, x)

    def _tuple(self, items: tuple[Any, ...]) -> None:
        """Hash a tuple by its items; cache the digest if it holds nothing mutable."""
        if (known := self._tuples.get(id(items))) is None:
            met = self._met
            with self._apart() as found:
                for place, item in enumerate(items):
                    self.part(f"item {place}", item)
            known = found[0]
            if met == self._met:
                self._tuples[id(items)] = known
                self._alive.append(items)
        self._say("tuple", known.hex())

    def _content(self, x: Any) -> None:
        self._say(str(len(x)))
        if isinstance(x, dict):
            for key, item in x.items():
                self._walk(key)
                self.part(f"item {key!r:.40}" if isinstance(key, str | int) else "item", item)
        elif isinstance(x, list):
            for place, item in enumerate(x):
                self.part(f"item {place}", item)
        else:
            self._unordered(x)

    def _unordered(self, items: Iterable[Any]) -> None:
        """Hash the items of a set in the order of their digests, each as if it came first."""
        digests, known = [], self._numbers
        for item in items:
            self._numbers = dict(known)
            with self._apart() as found:
                self.part("element", item)
            digests += found
        self._numbers = known
        for one in sorted(digests):
            self._say("element", one.hex())

    def _numbers_of_numpy(self, x: Any) -> None:
        dtype = x if isinstance(x, np.dtype) else x.dtype
        self._say("dtype", f"{dtype.str} {dtype!r}")
        if x is dtype:
            return
        self._say("shape", str(x.shape))
        if dtype.hasobject:
            self._content(np.asarray(x).ravel().tolist())
        else:
            self._say("numbers", hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest())

    # -- functions ------------------------------------------------------------------------------------------
    def _function(self, f: types.FunctionType) -> None:
        code = f.__code__
        self._say("function", f.__name__)
        self._code(code)
        for place, x in enumerate(f.__defaults__ or ()):
            self.part(f"default {place + 1}", x)
        for name, x in sorted((f.__kwdefaults__ or {}).items()):
            self.part(f"default of {name!r}", x)
        for name, cell in zip(code.co_freevars, f.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                self._say("empty", name)
            else:
                self.part(f"closure cell {name!r}", content)
        self._attributes(vars(f))
        if not package_of(f.__module__):
            self._globals(f)

    def _code(self, code: types.CodeType) -> None:
        """Hash what code does, but not its location or the interpreter's specialisations."""
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        table = getattr(code, "co_exceptiontable", b"")
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        self._say("code", f"{counts} {names} {code.co_code.hex()} {table.hex()}")
        self._names.update(code.co_names, (x for x in code.co_consts if isinstance(x, str)))
        self._tuple(code.co_consts)

    def _globals(self, f: types.FunctionType) -> None:
        """Hash the globals and builtins that a function reads, and the modules that it imports."""
        for name in _told(f.__code__, "LOAD_GLOBAL", "LOAD_NAME"):
            if name in f.__globals__:
                self.part(f"global {name!r}", f.__globals__[name])
            elif name in _OUTSIDE:
                self._refuse(f"calls {name}, which may read anything")
            else:
                self._say("builtin" if hasattr(builtins, name) else "missing", name)
        for name in _told(f.__code__, "IMPORT_NAME"):
            package = f.__globals__.get("__package__")
            for path in (name, f"{package}.{name}" if package else name):
                try:
                    self.part(f"import of {name}", import_module(path))
                    break
                except ImportError:
                    self._say("missing", path)

    # -- classes and instances ------------------------------------------------------------------------------
    def _class(self, kind: type) -> None:
        self._say("class", kind.__name__)
        self._parts({"metaclass": type(kind), "bases": kind.__bases__})
        if issubclass(kind, Enum):
            for member in kind:
                self.part(member.name, member.value)
        for name, x in sorted(vars(kind).items()):
            hidden = issubclass(kind, Enum) and not isinstance(
                x, types.FunctionType | property | classmethod | staticmethod
            )
            if name in _NO_MATTER or hidden:
                continue
            if isinstance(x, types.MemberDescriptorType | types.GetSetDescriptorType):
                self._say("member", name)
            else:
                self.part(f"attribute {name!r}", x)

    def _instance(self, x: Any) -> None:
        kind = type(x)
        if state := no_state(x):
            self._refuse(f"is {state}")
        if package_of(kind.__module__).startswith("mpmath "):  # a number or context
            told = [getattr(x, name, None) for name in ("_mpf_", "_mpc_", "_mpi_", "prec")]
            if any(one is not None for one in told):
                self._say("mpmath", f"{package_of(kind.__module__)} {told}")
                return
        if isinstance(x, np.ufunc):
            self._refuse("is a ufunc that NumPy does not have")
        self.part("class", kind)
        if package_of(kind.__module__).startswith("mcfsim ") and hasattr(kind, "fma"):
            # An arithmetic is determined by its public attributes; others follow from them, or change in use.
            self._attributes({name: y for name, y in vars(x).items() if not name.startswith("_")}, {"plan"})
            return
        computed = {
            name for base in kind.__mro__ for name, y in vars(base).items() if isinstance(y, cached_property)
        }
        own: dict[str, Any] = {}
        if not package_of(kind.__module__):  # a user's class may omit relevant state from copies
            slots = (vars(base).get("__slots__", ()) for base in kind.__mro__)
            names = (name for some in slots for name in ([some] if isinstance(some, str) else some))
            own = {name: getattr(x, name) for name in names if hasattr(x, name) and not name.startswith("__")}
            own |= getattr(x, "__dict__", {})
            self._attributes(own, computed)
        try:
            reduce = copyreg.dispatch_table.get(kind)
            made: Any = x.__reduce_ex__(4) if reduce is None else reduce(x)
        except Exception:
            self._refuse(f"is a {kind.__name__}, whose state cannot be determined")
        if isinstance(made, str):
            self._refuse(f"is {made} of type {kind.__name__}, known by its name alone")
        make, arguments, state, items, pairs = (*made, *[None] * 5)[:5]
        self._parts({"maker": make, "arguments": arguments})
        for one in state if isinstance(state, tuple) else (state,):
            if isinstance(one, dict) and all(isinstance(name, str) for name in one):
                self._attributes({name: y for name, y in one.items() if name not in own}, computed)
            else:
                self.part("state", one)
        self._content(list(items or ()))
        self._content(dict(pairs or ()))

    def _attributes(self, attributes: dict[str, Any], computed: Collection[str] = ()) -> None:
        for name, x in sorted(attributes.items()):
            if name not in computed:
                self.part(f"attribute {name!r}", x)


@lru_cache(maxsize=8192)
def _told(code: types.CodeType, *operations: str) -> tuple[str, ...]:
    """Return the names that given operations of code refer to, including nested code."""
    found = {str(step.argval) for step in dis.get_instructions(code) if step.opname in operations}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= set(_told(constant, *operations))
    return tuple(sorted(found))
