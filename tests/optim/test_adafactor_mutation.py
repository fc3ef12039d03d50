"""Every place of the text of Adafactor, altered: the judge notices, or it is said why not."""

import ast
import inspect
import sys
from types import ModuleType
from zlib import crc32

import pytest

import mcfsim as mcf
from mcfsim.optim import adafactor
from tests.shared.alterations import with_altered

from .test_adafactor import GIVEN, KINDS, MIXED, assert_judged, few

#: What a call of an arithmetic is exchanged for, and scalars for each other.
EXCHANGED = {
    "add": "sub",
    "sub": "add",
    "mul": "div",
    "div": "mul",
    "sqrt": "abs",
    "abs": "neg",
    "fma": "mul",
}
SCALARS = {
    **{"beta2": "gain2", "gain2": "beta1", "epsilon": "threshold", "threshold": "least_scale"},
    **{"least_scale": "rate", "decay": "rate", "rate": "decay", "beta1": "gain1", "gain1": "beta2"},
}
KNOWN = {
    **{"square": "g", "g": "square", "rows": "row_mean", "row_mean": "all_rows", "column_mean": "columns"},
    **{"share": "g", "direction_mean": "weight_mean", "weight_mean": "direction_mean", "clip": "size"},
    **{"size": "clip", "variance": "g", "direction": "clip", "all_rows": "row_mean"},
}
PLACES = {"ELEMENT": "ROW", "ROW": "COLUMN", "COLUMN": "ROW", "MATRIX": "TENSOR", "TENSOR": "MATRIX"}
#: Into how many parts the alterations are dealt.
PARTS = 6
#: Those that change no bit.
SAME = {
    # The update has the format of m, and so of g.
    "direction: crossed(up, known['g'], roles.moments) -> known['g']",
    "averaged: crossed(ar, new, up) -> new",
    "averaged: crossed(up, m[0], ar) -> m[0]",
    # A decay of zero adds zero.
    "moved: scalars.decay -> scalars.rate",
    "averaged: scalars.decay -> scalars.rate",
    # The numbers of all matrices of a tensor are alike.
    "stages: Over.TENSOR -> Over.MATRIX",
}


def mutants(tree):
    """Yield what can be altered: where and how, the node, and the one in its place."""
    methods = [x for kind in tree.body if isinstance(kind, ast.ClassDef) for x in kind.body]
    for function in [*tree.body, *methods]:
        if not isinstance(function, ast.FunctionDef) or function.name in ("entering", "__post_init__"):
            continue
        for node in (x for statement in function.body for x in ast.walk(statement)):
            for altered in _altered(node):
                yield f"{function.name}: {ast.unparse(node)} -> {ast.unparse(altered)}", node, altered


def _altered(node):
    if isinstance(node, ast.Attribute) and node.attr in EXCHANGED and isinstance(node.ctx, ast.Load):
        yield ast.Attribute(node.value, EXCHANGED[node.attr], node.ctx)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "scalars":
        yield ast.Attribute(node.value, SCALARS[node.attr], node.ctx)
    if isinstance(node, ast.Constant) and isinstance(node.value, float | int):
        yield ast.Constant(node.value + 1)
    if isinstance(node, ast.Constant) and node.value in KNOWN:
        yield ast.Constant(KNOWN[node.value])
    if isinstance(node, ast.Constant) and node.value in ("v", "update"):
        yield ast.Constant("update" if node.value == "v" else "v")
    if isinstance(node, ast.Attribute) and node.attr in PLACES:
        yield ast.Attribute(node.value, PLACES[node.attr], node.ctx)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("crossed", "ar.round", "up.round"):
        yield node.args[-2] if ast.unparse(node.func) == "crossed" else node.args[0]
    if isinstance(node, ast.If):
        yield ast.If(ast.Constant(False), node.body, node.orelse)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.sampled(PARTS, each=False)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.costly("each altered text takes steps")
def test_a_text_with_one_thing_altered_is_told_from_it(part, monkeypatch, assert_same):
    def survives(tree):
        module = ModuleType("altered")
        monkeypatch.setitem(sys.modules, "altered", module)
        try:
            exec(compile(tree, "altered", "exec"), module.__dict__)
            for judge in KINDS.values():
                hyper = getattr(module, type(judge).__name__)(**GIVEN)
                assert_judged(assert_same, hyper, MIXED, judge=judge, given=few, steps=2)
            collage = mcf.strategy("collage-plus")
            assert_judged(assert_same, hyper, collage, judge=judge, given=few, steps=3)
        except (
            AssertionError,
            AttributeError,
            KeyError,
            ValueError,
            IndexError,
            TypeError,
            pytest.fail.Exception,
        ):
            return False
        return True

    tree = ast.parse(inspect.getsource(adafactor))
    assert survives(tree)
    found = list(mutants(tree))
    assert len(found) > 150
    tried = [x for x in found if crc32(x[0].encode()) % PARTS == part]  # of one name together
    survived = {where for where, *place in tried if survives(with_altered(tree, *place))}
    assert survived == SAME & {where for where, *_ in tried}
