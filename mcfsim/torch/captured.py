"""Steps in captured CUDA graphs, which repeat them, and the operator for steps in compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch

from mcfsim.checks import Whole
from mcfsim.compile.kernel import GraphLaunch, Kernel, Rows, tabulated
from mcfsim.compile.launch import SourceWords, elements_on
from mcfsim.kernels.torch_tensors import TORCH_DTYPES
from mcfsim.optim.step_programs import words_of
from mcfsim.torch.local import local
from mcfsim.torch.moved import ParameterSlice, StepInputs, Work
from mcfsim.torch.state_layout import StateLayout
from mcfsim.torch.straight_step import DeviceStep, VectorSet, taken

# -- an operator ------------------------------------------------------------------------------------------
_numbers = count()
_optimizers: WeakValueDictionary[int, Any] = WeakValueDictionary()


def enrolled(optimizer: torch.optim.Optimizer) -> int:
    """Register an optimizer, and return the number by which the operator finds it while it lives."""
    number = next(_numbers)
    _optimizers[number] = optimizer
    return number


@torch.library.custom_op(
    "mcfsim::step",
    mutates_args=("parameters",),
    schema="(int number, int[] places, Tensor(a!)[] parameters, Tensor[] gradients) -> ()",
    **({"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}),
)
def step(number, places, parameters, gradients):  # type: ignore[no-untyped-def]
    """Make a step of the optimizer with a given number, for parameters at given places, by their gradients.

    A compiled graph may pass copies of parameters, which it copies back afterwards; so the step works on the
    tensors that it is given. A CUDA graph captured by the compiler would repeat launches without
    `before_replay`; the tag, where torch has it, prevents such captures.
    """
    optimizer = _optimizers[number]
    listed = optimizer.listed()
    optimizer.advance([listed[place] for place in places], parameters, gradients, in_operator=True)


# -- captured graphs --------------------------------------------------------------------------------------
def capturing() -> bool:
    """Return whether a CUDA graph is being captured."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


#: How many of the latest launches are kept: more than an optimizer has groups.
_KEPT = 256


@dataclass(frozen=True)
class Captured:
    """A launch in a captured graph.

    Attributes
    ----------
    on : RepeatableStep
    key
        The key of its program.
    launch : GraphLaunch
    rows : list of Rows
        The vectors that it processes.
    """

    on: RepeatableStep
    key: Any
    launch: GraphLaunch
    rows: list[Rows]

    def prepared(self, inputs: StepInputs) -> Callable[[], None]:
        """Return a function that hands over the inputs of a step for the next replay.

        Raises
        ------
        RuntimeError
            If the graph cannot make this step.
        """
        program, scalars = self.on.program(inputs)
        words = words_of(self.on.stores.roles, inputs.number)
        chosen = self.launch.chosen(scalars) if program.key == self.key else None
        if chosen is None:
            raise RuntimeError(
                f"the captured graph cannot make a step with {inputs.hyper} and lr = {inputs.rate}: "
                "operations take part that did not when it was captured, or the reverse; capture it anew "
                "with these"
            )
        return lambda: self.launch.hand_over(chosen, self.rows, words)


class RepeatableStep(DeviceStep):
    """A step runner like `DeviceStep`, with launches that a captured graph may repeat."""

    def __init__(self, stores: StateLayout) -> None:
        super().__init__(stores)
        self._launches: dict[Any, GraphLaunch] = {}

    def capture(self, moved: Sequence[ParameterSlice], inputs: StepInputs) -> Captured | None:
        """Capture the launch of a step; each replay then makes the step whose inputs were handed over.

        Raises
        ------
        RuntimeError
            If the step has no kernel, or its kernel was not launched before for these parameters.
        TypeError
            If a gradient would have to be rounded first.
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
                f"steps of strategy {self.stores.strategy.name!r} cannot be captured in a graph: its moments "
                "are quantised between launches"
            )
        program, scalars = self.program(inputs)
        line = self.line(program, device)
        if not isinstance(line, Kernel):
            raise RuntimeError("a captured graph needs a kernel of Triton, and none can run here")
        sets = [self.set_of(x) for x in moved]
        launch, rows, _ = self._earlier(line, scalars, sets)
        if launch is None:
            raise RuntimeError(
                "make a step outside of the graph first, with gradients of the same parameters: it compiles "
                "kernels and makes state"
            )
        launch.launch()
        for x, operands, _ in sets:
            self.put_back(x, operands)
        return Captured(self, program.key, launch, rows)

    def _launch(
        self, line: Kernel, scalars: Sequence[Any], sets: Sequence[VectorSet], words: SourceWords
    ) -> None:
        launch, rows, elements = self._earlier(line, scalars, sets)
        if launch is None:
            launch = GraphLaunch(line, scalars, rows, elements, words, sets[0].slice.gradient.device)
            self._launches[_key(line, sets)] = launch
            if len(self._launches) > _KEPT:
                del self._launches[next(iter(self._launches))]
        chosen = launch.chosen(scalars)
        assert chosen is not None
        launch.hand_over(chosen, rows, words)
        launch.launch()

    def _earlier(
        self, line: Kernel, scalars: Sequence[Any], sets: Sequence[VectorSet]
    ) -> tuple[GraphLaunch | None, list[Rows], int]:
        """Return the earlier launch for these parameters, or None if it does not take vectors or scalars.

        With it come the rows of the vectors, and the number of elements that an instance processes.
        """
        vectors = taken(line.with_numbers(scalars), sets)
        elements = elements_on(vectors[0][0].device, max(x.slice.gradient.numel() for x in sets))
        rows = tabulated(vectors, [x.slice.first for x in sets], elements)
        launch = self._launches.get(_key(line, sets))
        if launch is not None and not (launch.fits(rows, elements) and launch.chosen(scalars)):
            launch = None
        return launch, rows, elements


def _key(line: Kernel, sets: Sequence[VectorSet]) -> Any:
    """Return the key of a launch. Each set of parameters has its own launch, as a graph may have them all."""
    return line, *(x.slice.tensors["parameter"].data_ptr() for x in sets)


class CapturedStep:
    """A step of an optimizer in a captured graph.

    Parameters
    ----------
    works : sequence of Work
        The work of the step.
    states : mapping of tensor to dict
        The optimizer's state.

    Raises
    ------
    RuntimeError
        If the step cannot be captured.
    """

    def __init__(self, works: Sequence[Work], states: Mapping[torch.Tensor, dict[str, Any]]) -> None:
        runners = [work.on for work in works if isinstance(work.on, RepeatableStep)]
        if len(runners) < len(works):
            raise RuntimeError(
                "a step of parameters on a CPU, or of a group without capturable=True, cannot be part of "
                "a captured graph"
            )
        #: Group, parameters and launch of each work; no launch if the parameters have no elements.
        self._together = [
            (work.group, work.parameters, on.capture(work.moved, work.inputs))
            for work, on in zip(works, runners, strict=True)
        ]
        self._places = self._addresses(states)

    def before_replay(
        self,
        states: Mapping[torch.Tensor, dict[str, Any]],
        inputs: Callable[[int, int], StepInputs],
        whole: Whole,
    ) -> None:
        """Count the step, and hand over its inputs; see `StoredOptimizer.before_replay`.

        Parameters
        ----------
        states : mapping of tensor to dict
            The optimizer's present state.
        inputs : callable
            Returns the inputs of a group's step, given its number.
        whole : Whole
            The optimizer's.
        """
        if self._addresses(states) != self._places:
            raise RuntimeError(
                "parameters or state lie elsewhere than when the graph was captured; capture it anew"
            )
        counts, prepared = [], []
        for group, parameters, launch in self._together:
            found = {states[p]["step"] + 1 for p in parameters}
            if len(found) > 1:
                raise RuntimeError(
                    "parameters that the graph moves together have made different numbers of steps since it "
                    "was captured; capture it anew"
                )
            counts.append(found.pop())
            if launch is not None:
                prepared.append(launch.prepared(inputs(group, counts[-1])))
        with whole.changing("handing a step over to a captured graph"):
            for hand_over in prepared:
                hand_over()
            for (_, parameters, _), count in zip(self._together, counts, strict=True):
                for p in parameters:
                    states[p]["step"] = count

    def _addresses(self, states: Mapping[torch.Tensor, dict[str, Any]]) -> list[int]:
        """Return the addresses of all tensors that the graph writes."""
        return [
            local(x).data_ptr()
            for _, parameters, _ in self._together
            for p in parameters
            for x in (p, *states.get(p, {}).values())
            if isinstance(x, torch.Tensor)
        ]
