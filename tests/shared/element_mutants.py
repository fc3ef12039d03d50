"""The text for one element, altered in one place: its mutants, each a module of its own."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from unittest.mock import patch

from mcfsim.kernels import element
from tests.shared.alterations import nodes, usual, with_altered

PACKAGE = "mcfsim.kernels.element"
#: The modules of the text, each after those that it imports.
MODULES = ("gpu_verbs", "floats", "codes", "element_rounding", "operations")
#: What an attribute is exchanged for.
_ATTRIBUTES = {
    **{"UP": "DOWN", "DOWN": "UP", "NEAREST_EVEN": "NEAREST_AWAY", "NEAREST_AWAY": "NEAREST_EVEN"},
    **{"TOWARD_ZERO": "TO_ODD", "TO_ODD": "TOWARD_ZERO", "STOCHASTIC": "TO_ODD"},
    **{"SATURATE": "IEEE", "IEEE": "SATURATE", "NEAREST_BOUNDARY": "SATURATE"},
    **{"GRADUAL": "FLUSH_BEFORE", "FLUSH_AFTER": "FLUSH_BEFORE", "FLUSH_INPUTS": "FLUSH_AFTER"},
    **{"NEAREST_FIRST": "CENTRED", "CENTRED": "TRUNCATE", "CODE": "SIGNIFICAND"},
    **{"NATIVE": "WIDE", "WIDE": "EXACT", "EXACT": "STICKY", "EXACT_WITHIN": "STICKY_WITHIN"},
    **{"STICKY_WITHIN": "EXACT_WITHIN"},
    **{"emin": "emax", "emax": "emin", "lowest": "max", "max": "lowest", "exponent_bits": "sign_bit"},
    **{"sign_place": "place", "place": "sign_place"},
}
_NAMES = {
    **{"least": "greatest", "greatest": "least", "two_sum": "fast_two_sum", "INFINITY": "NAN"},
    **{"NAN": "INFINITY", "True": "False", "F64": "F32", "F32": "F64", "I32": "I64", "I64": "I32"},
}
_ARITHMETIC = {ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv}


@dataclass(frozen=True)
class Mutant:
    """An altered text."""

    module: str
    #: Where it is altered and how: the function, the text before and after; a number, if there are several.
    what: str
    #: Of the statement that is altered, if it stands in a function.
    line: int | None
    _within: ast.stmt = field(repr=False, compare=False)
    _node: ast.AST = field(repr=False, compare=False)
    _altered: ast.AST = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.module}: {self.what}"

    @property
    def source(self) -> str:
        """The whole text of the module."""
        return ast.unparse(self._tree)

    @property
    def _tree(self) -> ast.Module:
        altered = with_altered(self._within, self._node, self._altered)
        return ast.Module([altered if x is self._within else x for x in tree_of(self.module).body], [])

    def text(self) -> SimpleNamespace:
        """Return the text's modules, made anew, one of them altered."""
        return made({self.module: compile(self._tree, path_of(self.module), "exec")})


@lru_cache
def path_of(module: str) -> str:
    """Return where a module lies."""
    return str(Path(element.__file__).with_name(f"{module}.py"))


@lru_cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a module as it is."""
    return ast.parse(Path(path_of(module)).read_text())


@lru_cache
def _code(module: str) -> CodeType:
    return compile(tree_of(module), path_of(module), "exec")


def made(altered: dict[str, CodeType], seen: set[tuple[str, int]] | None = None) -> SimpleNamespace:
    """Return the modules of the text, made anew from their codes, which know of each other alone."""
    names = {module: f"{PACKAGE}.{module}" for module in MODULES}
    fresh = {module: ModuleType(name) for module, name in names.items()}
    with patch.dict(sys.modules, {names[module]: fresh[module] for module in MODULES}):
        for module in MODULES:
            fresh[module].__dict__["_seen"] = seen
            exec(altered.get(module) or _code(module), fresh[module].__dict__)
    return SimpleNamespace(**fresh)


def marked(seen: set[tuple[str, int]]) -> SimpleNamespace:
    """Return the modules as they are, but for a note of each statement of a function that is carried out."""
    codes = {}
    for module in MODULES:
        tree = deepcopy(tree_of(module))
        for function in (x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef)):
            for node in ast.walk(function):
                for label in ("body", "orelse"):
                    body = getattr(node, label, None)
                    if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                        setattr(node, label, [x for item in body for x in (_note(module, item), item)])
        codes[module] = compile(ast.fix_missing_locations(tree), path_of(module), "exec")
    return made(codes, seen=seen)


def _note(module: str, statement: ast.stmt) -> ast.stmt:
    (note,) = ast.parse(f"_seen.add(({module!r}, {statement.lineno}))").body
    return note


# -- alterations ---------------------------------------------------------------------------------------------
def _alter(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node of this text can be exchanged for."""
    yield from usual(node)
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(value)):
            yield ast.Constant(value - 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value + 1.0)
            if value:
                yield ast.Constant(-value)
        case ast.BinOp(left=left, op=op, right=right):
            yield right
            if type(op) in _ARITHMETIC:
                yield ast.BinOp(left, _ARITHMETIC[type(op)](), right)
                yield left
            if isinstance(op, ast.Sub):
                yield ast.BinOp(right, op, left)
        case ast.BoolOp(op=op, values=values):
            for i in range(1, len(values)):
                rest = values[:i] + values[i + 1 :]
                yield ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Attribute(value=value, attr=name, ctx=ctx) if name in _ATTRIBUTES:
            yield ast.Attribute(value, _ATTRIBUTES[name], ctx)
        case ast.Name(id=name, ctx=ast.Load() as ctx) if name in _NAMES:
            yield ast.Name(_NAMES[name], ctx)
        case ast.Subscript(value=ast.Name(id=name) as table, slice=key) if name in ("CARRIERS", "BITS_OF"):
            text = f"[x for k, x in {table.id}.items() if k is not {ast.unparse(key)}][0]"
            yield ast.parse(text, mode="eval").body
        case ast.Call():
            yield from _of_call(node)
        case ast.Assign(targets=[ast.Tuple() as target], value=value):
            yield ast.Assign([ast.Tuple(target.elts[::-1], target.ctx)], value)
        case ast.Return(value=ast.Name() as value):
            yield ast.Return(ast.UnaryOp(ast.USub(), value))
        case ast.Raise():
            yield ast.Pass()
        case ast.Dict(keys=keys, values=values):
            yield ast.Dict(keys, [values[-1], *values[:-1]])


def _instead(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what replaces a statement of which little else can be altered."""
    match node:
        case ast.AnnAssign(target=target, annotation=annotation, value=ast.Constant(), simple=simple):
            yield ast.AnnAssign(target, annotation, None, simple)
        case ast.AnnAssign(target=target, annotation=annotation, simple=simple):
            yield ast.AnnAssign(target, annotation, ast.Constant(None), simple)
        case ast.Assign(targets=targets, value=ast.Name() as value):
            yield ast.Assign(targets, ast.UnaryOp(ast.USub(), value))
        case ast.Assign(targets=targets, value=ast.Call(keywords=[]) as value):
            yield ast.Assign(targets, ast.UnaryOp(ast.USub(), value))
        case ast.Assign(targets=targets, value=ast.Attribute() as value):
            yield ast.Assign(targets, ast.BinOp(value, ast.Add(), ast.Constant(1)))
        case ast.Return(value=ast.Call() as value):
            yield ast.Return(ast.UnaryOp(ast.USub(), value))


def _of_call(call: ast.Call) -> Iterator[ast.AST]:
    function, arguments, keywords = call.func, call.args, call.keywords
    match function:
        case ast.Attribute(attr="select"):
            yield ast.Call(function, arguments[::-1], keywords)
            yield from arguments
        case ast.Attribute(attr="equals"):
            yield ast.UnaryOp(ast.Invert(), call)
        case ast.Attribute(attr="count", value=value):
            inverted = ast.UnaryOp(ast.Invert(), value)
            yield ast.Call(ast.Attribute(inverted, "count", ast.Load()), arguments, keywords)
        case ast.Attribute(attr="bits", value=value):
            negative = ast.UnaryOp(ast.USub(), value)
            yield ast.Call(ast.Attribute(negative, "bits", ast.Load()), [], [])
        case ast.Attribute(attr="widen" | "narrow" | "cut" | "extend" | "sqrt", value=value):
            yield value
        case ast.Name(id="abs" | "with_sign" | "_brought_back" | "make_odd" | "flush_element" | "_towards"):
            yield arguments[1] if function.id == "_brought_back" else arguments[0]
    if len(arguments) > 1 and isinstance(function, ast.Name):
        yield ast.Call(function, [arguments[1], arguments[0], *arguments[2:]], keywords)
    for i in range(len(keywords)):
        yield ast.Call(function, arguments, keywords[:i] + keywords[i + 1 :])


def _statements(body: list[ast.stmt], where: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements that do something, each with the function that it stands in."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield from _statements(statement.body, f"{where}.{statement.name}".lstrip("."))
        elif not isinstance(statement, ast.Import | ast.ImportFrom | ast.AnnAssign) or (
            isinstance(statement, ast.AnnAssign) and statement.value is not None
        ):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            yield where, statement
            inner = [*getattr(statement, "body", []), *getattr(statement, "orelse", [])]
            inner += [item for case in getattr(statement, "cases", []) for item in case.body]
            yield from _statements(inner, where)


def statements(module: str) -> list[ast.stmt]:
    """Return the statements of a module that do something: no definitions, imports, docstrings."""
    return [statement for _, statement in _statements(tree_of(module).body)]


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield what of a statement can be altered, but for the statements in it."""
    inner = {id(x) for _, x in _statements([statement])} - {id(statement)}
    skipped: set[int] = set()
    for node in nodes(statement, refusals=True):
        if id(node) in inner or id(node) in skipped:
            skipped |= {id(child) for child in ast.iter_child_nodes(node)}
        else:
            yield node


def _shown(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node)).split("\n")[0] or "nothing"


#: Words that say nothing alone.
_SIGNS = ("<", "<=", "and", "or", "==", "!=", "+", "-", "in", "is")


def _told(before: str, after: str) -> str:
    """Return what a text is exchanged for; of long ones without most of what they have in common."""
    one, other = before.split(" "), after.split(" ")
    if len(before) + len(after) > 60:
        alike = [x == y for x, y in zip(one, other, strict=False)] + [False]
        first = min(alike.index(False), len(one) - 1, len(other) - 1)
        one, other, word = one[first:], other[first:], one[first - 1 : first]
        while min(len(one), len(other)) > 1 and one[-1] == other[-1]:
            rest = [one.pop()]
            other.pop()
        if len(one) == len(other) == 1 and one[0] in _SIGNS:
            one, other = word + one + rest, word + other + rest
    return f"{' '.join(one)} -> {' '.join(other)}"


@lru_cache
def mutants(module: str) -> list[Mutant]:
    """Return all mutants of a module, in order."""
    count: Counter[str] = Counter()
    found = []
    for within in tree_of(module).body:
        for where, statement in _statements([within]):
            inside = "." in where or where[:1].islower() or where[:1] == "_"
            line = statement.lineno if inside else None
            for node in _own(statement):
                before = ast.dump(node)
                texts = {before}
                others = [*_alter(node)] or [*_instead(node)]
                for altered in others:
                    text = ast.dump(altered)
                    if text in texts:
                        continue
                    texts.add(text)
                    what = f"{where or 'module'}: {_told(_shown(node), _shown(altered))}"
                    count[what] += 1
                    what += f" ({count[what]})" * (count[what] > 1)
                    found.append(Mutant(module, what, line, within, node, altered))
    return found


def unaltered(module: str) -> list[int]:
    """Return the lines of statements of which nothing is altered."""
    lines = {line for mutant in mutants(module) for line in [mutant._node.lineno]}
    owned = [{node.lineno for node in _own(x) if hasattr(node, "lineno")} for x in statements(module)]
    return [x.lineno for x, own in zip(statements(module), owned, strict=True) if not own & lines]
