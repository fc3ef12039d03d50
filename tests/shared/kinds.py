"""Strategies by what tests ask of them."""

import mcfsim as mcf
from mcfsim.optim.declaration import optimizers, straight_optimizers

STORED = [name for name in mcf.STRATEGIES if name != "exact"]
#: Those whose moments are quantised after a step, which is then not all that is done to the state.
QUANTISED = [name for name in STORED if mcf.STRATEGIES[name].m.scaled]
#: Those whose steps are all that is done to it.
PLAIN = [name for name in STORED if name not in QUANTISED]
#: Those of them that lie as numbers alone: of no scaled format.
UNPACKED = ["int8-moments", "coat-moments"]
#: Those that every low format with float32's exponents may have, but no other.
LEADING = [name for name in STORED if mcf.STRATEGIES[name].extra and mcf.STRATEGIES[name].extra.shared]

#: Optimizers whose steps are made of stages.
STAGED = [name for name, kind in optimizers().items() if kind.staged]


def feeds(optimizer, strategy):
    """Return whether an optimizer, by its name, can do what a strategy asks of it."""
    return mcf.strategy(strategy).addition != "feedback" or optimizers()[optimizer].feeds_back


def feeding(strategies):
    """Return pairs of optimizers, whose step is one straight line, and strategies that go together."""
    return [(name, item) for name in straight_optimizers() for item in strategies if feeds(name, item)]


def rotating(strategies):
    """Return each strategy with one optimizer, and each optimizer with one strategy, that go together."""
    optimizers, found = [*straight_optimizers()], {}
    for place in range(max(len(optimizers), len(strategies))):
        item = strategies[place % len(strategies)]
        turned = (optimizers[(place + step) % len(optimizers)] for step in range(len(optimizers)))
        found[next(name for name in turned if feeds(name, item)), item] = None
    missing = [x for x in optimizers if x not in {name for name, _ in found}]
    return [*found, *((name, next(x for x in strategies if feeds(name, x))) for name in missing)]
