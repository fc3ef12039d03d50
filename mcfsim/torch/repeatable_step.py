"""A step on tensors of a GPU that a captured CUDA graph may repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcfsim.backends.strung_tensors import TORCH_DTYPES
from mcfsim.compile.kernel import TableKernel
from mcfsim.compile.launch import elements_on
from mcfsim.compile.repeated import GraphLaunch
from mcfsim.compile.torch_lines import TensorLines
from mcfsim.compile.vector_tables import Rows, tabulated
from mcfsim.kernels.carriers import UnsupportedFormatError
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.step_programs import words_of
from mcfsim.random import RandomWords
from mcfsim.torch.device_step import DeviceStep, Vectors, taken
from mcfsim.torch.moved import Moved, Stores

#: Launches that are kept, those made last: more than an optimizer has groups.
_KEPT = 256


@dataclass(frozen=True)
class Captured:
    """A launch in a captured graph.

    Attributes
    ----------
    on : RepeatableStep
    key
        Of its program.
    launch : Repeated
    rows : list of Rows
        What it works on.
    """

    on: RepeatableStep
    key: Any
    launch: GraphLaunch
    rows: list[Rows]

    def prepared(self, hyper: Declaration, count: int, rate: float) -> Callable[[], None]:
        """Return what hands over all that a repetition needs to make step number `count`.

        Raises
        ------
        RuntimeError
            If the graph cannot make it.
        """
        program, scalars = self.on.program(hyper, count, rate)
        words = words_of(self.on.stores.roles, count)
        try:
            chosen = self.launch.chosen(scalars) if program.key == self.key else None
        except UnsupportedFormatError:
            chosen = None
        if chosen is None:
            raise RuntimeError(
                f"the captured graph cannot make a step with {hyper} and lr = {rate}: operations take part "
                "that did not when it was captured, or the reverse; capture it anew with these"
            )
        return lambda: self.launch.hand_over(chosen, self.rows, words)


class RepeatableStep(DeviceStep):
    """Steps of an optimizer, as `DeviceStep` makes them, by launches that a captured graph may repeat."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._launches: dict[Any, GraphLaunch] = {}

    def capture(self, moved: Sequence[Moved], hyper: Declaration, count: int, rate: float) -> Captured | None:
        """Let a graph that is being captured make a step, once what it needs is handed over.

        Raises
        ------
        RuntimeError
            If there is no kernel for it, or none that was launched before for parameters of these sizes.
        TypeError
            If a gradient would be rounded first.
        """
        moved = [x for x in moved if x.gradient.numel()]
        if not moved:
            return None
        device, fmt = moved[0].gradient.device, self.stores.gradient
        for x in moved:
            if TORCH_DTYPES.get(x.gradient.dtype) != fmt:
                raise TypeError(f"in a captured graph gradients must be of {fmt}, not of {x.gradient.dtype}")
        if self.stores.scaled:
            raise RuntimeError(
                f"no graph can be captured of strategy {self.stores.strategy.name!r}: its moments are "
                "quantised between launches"
            )
        program, scalars = self.program(hyper, count, rate)
        line = self.line(program, device)
        if not isinstance(line, TableKernel):
            raise RuntimeError("a captured graph needs a kernel of Triton, which does not serve here")
        sets = [self.vectors(x) for x in moved]
        rows, elements = _tabulated(line, scalars, moved, sets)
        launch = self._made(line, scalars, moved, rows, elements)
        if launch is None:
            raise RuntimeError(
                "make a step outside of the graph first, with gradients of the same parameters: it compiles "
                "kernels and makes state"
            )
        launch.launch()
        for x, vectors in zip(moved, sets, strict=True):
            self.put_back(x, vectors)
        return Captured(self, program.key, launch, rows)

    def _fill(
        self,
        line: TableKernel | TensorLines,
        scalars: Sequence[Any],
        moved: Sequence[Moved],
        sets: Sequence[Vectors],
        words: Mapping[int, RandomWords],
    ) -> None:
        if not isinstance(line, TableKernel):
            super()._fill(line, scalars, moved, sets, words)
        elif sets:
            rows, elements = _tabulated(line, scalars, moved, sets)
            launch = self._made(line, scalars, moved, rows, elements)
            if launch is None:
                launch = GraphLaunch(line, scalars, rows, elements, words, sets[0][0].device)
                self._launches[_key(line, moved)] = launch
                if len(self._launches) > _KEPT:
                    del self._launches[next(iter(self._launches))]
            launch.hand_over(launch.chosen(scalars), rows, words)
            launch.launch()

    def _made(
        self,
        line: TableKernel,
        scalars: Sequence[Any],
        moved: Sequence[Moved],
        rows: Sequence[Rows],
        elements: int,
    ) -> GraphLaunch | None:
        """Return the launch that was made for some parameters, if it takes such rows and real scalars."""
        launch = self._launches.get(_key(line, moved))
        if launch is None or not launch.fits(rows, elements):
            return None
        try:
            launch.chosen(scalars)
        except UnsupportedFormatError:
            return None
        return launch


def _key(line: TableKernel, moved: Sequence[Moved]) -> Any:
    """Return by what a launch is known: each set of parameters has its own, for a graph may have them all."""
    return line, *(x.tensors["parameter"].data_ptr() for x in moved)


def _tabulated(
    line: TableKernel, scalars: Sequence[Any], moved: Sequence[Moved], sets: Sequence[Vectors]
) -> tuple[list[Rows], int]:
    """Return the rows of parameters' vectors, and how many elements an instance works on."""
    ready = line.with_numbers(scalars)
    for vectors in sets:
        ready.checked(vectors, vectors[:-1])
    elements = elements_on(sets[0][0].device, max(vectors[0].numel() for vectors in sets))
    return tabulated(taken(sets), [x.first for x in moved], elements), elements
