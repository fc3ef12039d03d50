"""A text altered in one place, found from its syntax tree: what tests that try mutants of a module share."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import deepcopy

#: What an operator is exchanged for.
EXCHANGED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitXor: ast.BitOr,
}  # fmt: skip
#: What a function is exchanged for.
OTHER = {
    **{"min": "max", "max": "min", "any": "all", "all": "any"},
    **{"minimum": "maximum", "maximum": "minimum", "floor": "ceil"},
}

Alter = Callable[[ast.AST], Iterator[ast.AST]]
Altered = tuple[str, ast.AST, ast.AST]


def with_altered(tree: ast.AST, node: ast.AST, altered: ast.AST) -> ast.AST:
    """Return a tree in which a node is another one; parts in which it is not are those of the first tree."""
    apart = [x for x in ast.iter_child_nodes(tree) if all(inner is not node for inner in ast.walk(x))]
    copy = deepcopy(tree, {id(node): altered} | {id(x): x for x in apart})
    return ast.fix_missing_locations(copy)


def alterations(tree: ast.Module, alter: Alter) -> Iterator[Altered]:
    """Yield what can be altered in functions and methods: where, the node, and the one in its place."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            yield from _of_function(statement.name, statement, alter)
        elif isinstance(statement, ast.ClassDef):
            for method in statement.body:
                if isinstance(method, ast.FunctionDef):
                    yield from _of_function(f"{statement.name}.{method.name}", method, alter)


def _of_function(name: str, function: ast.FunctionDef, alter: Alter) -> Iterator[Altered]:
    for statement in function.body:
        for node in nodes(statement):
            yield from ((name, node, altered) for altered in alter(node))


def nodes(node: ast.AST, *, refusals: bool = False) -> Iterator[ast.AST]:
    """Yield what can be altered: no docstring, message or annotation, and nothing that only raises.

    Unless ``refusals`` are altered, too.
    """
    raises = isinstance(node, ast.If) and all(isinstance(item, ast.Raise) for item in node.body)
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    kinds = ast.JoinedStr | ast.Assert if refusals else ast.Raise | ast.JoinedStr | ast.Assert
    if isinstance(node, kinds) or (raises and not refusals) or text:
        return
    yield node
    for label, child in ast.iter_fields(node):
        if label in ("annotation", "returns", "type_comment", "exc"):
            continue
        for item in child if isinstance(child, list) else [child]:
            if isinstance(item, ast.AST):
                yield from nodes(item, refusals=refusals)


def usual(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node of any text can be exchanged for."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                other = deepcopy(node)
                other.ops[i] = EXCHANGED[type(op)]()
                yield other
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(EXCHANGED[type(op)](), values)
            yield values[0]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in EXCHANGED:
            yield ast.BinOp(left, EXCHANGED[type(op)](), right)
            yield left
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name) as function) if name in OTHER:
            yield ast.Call(ast.Name(OTHER[name], function.ctx), node.args, node.keywords)
        case ast.Call(func=ast.Attribute(attr=name) as function) if name in OTHER:
            yield ast.Call(ast.Attribute(function.value, OTHER[name], function.ctx), node.args, node.keywords)
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.If(body=body, orelse=orelse):
            yield ast.If(ast.Constant(False), body, orelse)
