"""The base class of the optimizers: it makes the steps of `mcfsim.optim` in place, on a model's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch

from mcfsim.checks import Whole, check_processor
from mcfsim.kernels.torch_tensors import Tensors
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.layout import offsets
from mcfsim.optim.strategy import warn_of_vanishing
from mcfsim.torch import captured
from mcfsim.torch.captured import CapturedStep, capturing
from mcfsim.torch.group import LABELS, Hyperparameters, Settings, Steps, check_flags, without_doubles
from mcfsim.torch.local import is_cut, is_first_copy, is_first_process, local, placed_as, spread_as
from mcfsim.torch.moved import (
    ParameterPlace,
    ParameterSlice,
    StepInputs,
    Watching,
    WholeTensor,
    Work,
    Writes,
    check_gradient,
    check_memory,
    local_parts,
    local_tensors,
    name_in,
    opposite,
    whole_slice,
)
from mcfsim.torch.state_dicts import SavedOptimizer
from mcfsim.torch.state_layout import SCALE, Slots, summed
from mcfsim.torch.whole_step import GatheredStep


class StoredOptimizer(SavedOptimizer):
    """A PyTorch optimizer that makes steps of `mcfsim.optim`: by NumPy on the CPU, by kernels on a GPU."""

    #: The declaration whose step it makes, and the defaults that differ from it.
    _declaration: ClassVar[type[Declaration]]
    _defaults: ClassVar[Mapping[str, Any]] = {}
    _hyperparameters: ClassVar[Hyperparameters]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "_declaration" in vars(cls):
            cls._hyperparameters = Hyperparameters(cls._declaration, cls._defaults)
        cls.__signature__ = None if "__init__" in vars(cls) else cls._hyperparameters.constructor

    def __init__(self, *given: Any, **named: Any) -> None:
        params = {"params": named.pop("params")} if "params" in named else {}
        own = type(self).__name__
        taken = self._hyperparameters.received(own, self._hyperparameters.renamed(own, named))
        bound = self._hyperparameters.constructor.bind(*given, **params, **taken)
        bound.apply_defaults()
        defaults = dict(bound.arguments)
        self._begin()
        super().__init__(defaults.pop("params"), defaults)

    @classmethod
    def _declared(cls, group: Mapping[str, Any]) -> tuple[Declaration, float]:
        """Return the declaration and the rate of a group; raise if a number is out of range."""
        return cls._declaration(**cls._hyperparameters.of(group)), cls._hyperparameters.rate(group)

    def _begin(self) -> None:
        """Initialise the attributes that are neither saved nor copied."""
        self._number = captured.enrolled(self)
        self._made: dict[Settings, Steps] = {}
        self._writes = Writes()
        # Where parameters lay when they were added.
        self._places = WeakValueDictionary[tuple[int, int], torch.Tensor]()
        self.watches: list[Watching] = []
        self.whole = Whole("load what was saved together, the model's state and the optimizer's")
        self._captured: list[CapturedStep] = []

    def steps_of(self, group: Mapping[str, Any]) -> Steps:
        """Return the object that makes the steps of a group; groups with equal settings share one."""
        settings = Settings.of(group)
        if settings not in self._made:
            self._made[settings] = Steps(self._declaration, settings)
        return self._made[settings]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own hyperparameters and settings; see `torch.optim.Optimizer`.

        A parameter that occurs twice in it causes torch's warning, and moves once. If an entry of the group
        is unknown or out of range, an exception is raised, and the group is not added.
        """
        group = param_group
        if isinstance(param_group, dict):
            group = self._hyperparameters.received("a group", param_group, LABELS)
        super().add_param_group(group)
        group = self.param_groups.pop()  # it is put back once all checks have passed
        without_doubles(group)
        self._check_group(group)
        Settings.settled(group)
        steps = self.steps_of(group)
        steps.carrier(host=False, repeated=group["capturable"])  # raises if no graph can repeat them
        stores = steps.stores
        hyper, rate = self._declared(group)
        rounded = hyper.rounded_hyperparameters()
        for role, scalars in {**rounded, "update": {**rounded.get("update", {}), "lr": rate}}.items():
            warn_of_vanishing(stores.roles.of(role), scalars)
        for parameter in group["params"]:
            stores.check_parameter(parameter)
            stores.check_scales(parameter)
            self._slots(parameter, group)  # raises if the step cannot be made
        if steps.whole is None:
            steps.check(hyper)
        check_memory(group["params"], self._places)
        self.param_groups.append(group)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a number or flag of a group is out of range."""
        check_flags(group)
        hyper, _ = self._declared(group)
        if hyper.by_name and "param_names" not in group:
            raise ValueError(
                f"{type(hyper).__name__} goes by the names of parameters here, and got none; pass "
                "model.named_parameters() as params"
            )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step with the gradients, each rounded into the strategy's gradient format.

        A closure, if given, first computes the gradients; its result is returned. A parameter or gradient
        that is no dense tensor of the right dtype raises TypeError, and one of another shape than its state
        or parameter ValueError, before anything changes; so does a state that something else moved to another
        device or dtype. In a training step compiled by ``torch.compile`` this is one operator, with the same
        bits. A step that is broken off half-way, by KeyboardInterrupt say, spoils parameters and state: each
        further step raises `mcfsim.checks.SpoiltStateError` until a state is loaded.
        """
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        places = self.listed()
        moving = [index for index, place in enumerate(places) if place.parameter.grad is not None]
        given = [places[index].parameter for index in moving]
        gradients = [p.grad for p in given]
        if torch.compiler.is_compiling():
            captured.step(self._number, moving, given, gradients)
        else:
            self.advance([places[index] for index in moving], given, gradients)
        return loss

    def start(self) -> None:
        """Make the state of parameters that have none yet, and put parameters with a grid on it.

        Without this call the first step does so, with gradients of weights that were on no grid yet. Call it
        on a model's first weights; those of a saved state lie on their grids already.
        """
        self.whole.check()
        for place in self.listed():
            self.steps_of(self.param_groups[place.group]).stores.check_parameter(place.parameter)
        with torch.no_grad(), self.whole.changing("a start"):
            for place in self.listed():
                group, p = self.param_groups[place.group], place.parameter
                if not self.state[p]:
                    self.state[p] = self._start(p, group)
                    runner = self.steps_of(group).carrier(host=_is_host(p.device), repeated=False)
                    if isinstance(runner, GatheredStep) and self.steps_of(group).on_grid:
                        tensors = {SCALE: self.state[p][SCALE], "parameter": p.detach()}
                        runner.begin(whole_slice(tensors, local(p.detach()), place.first))
                        self._writes.made([p])

    def listed(self) -> list[ParameterPlace]:
        """Return the places of all parameters, with their elements numbered through all groups."""
        found, first = [], 0
        for group, given in enumerate(self.param_groups):
            for within, p in enumerate(given["params"]):
                found.append(ParameterPlace(group, within, p, first))
                first += p.numel()
        return found

    def is_at(self, place: ParameterPlace) -> bool:
        """Return whether a parameter is still at its place."""
        if place.group >= len(self.param_groups):
            return False
        group = self.param_groups[place.group]["params"]
        return place.within < len(group) and group[place.within] is place.parameter

    def advance(
        self,
        places: Sequence[ParameterPlace],
        given: Tensors,
        gradients: Tensors,
        *,
        in_operator: bool = False,
    ) -> None:
        """Make one step of the parameters at some places, on the given tensors that stand for them.

        PyTorch counts one more write when the operator of a compiled step ends, so its count is not kept.
        What `step` refuses raises before anything changes.
        """
        check_processor()
        self.whole.check()
        steps = {which: self.steps_of(self.param_groups[which]) for which in {x.group for x in places}}
        with torch.no_grad():
            for place, tensor in zip(places, given, strict=True):
                steps[place.group].stores.check_parameter(tensor)
            for tensor, gradient in zip(given, gradients, strict=True):
                check_gradient(tensor, gradient)
            received = [placed_as(tensor, x) for tensor, x in zip(given, gradients, strict=True)]
            if in_graph := capturing():
                self._check_capture(places)
            works = self._works(steps, places, given, received)
            if in_graph:
                self._captured.append(CapturedStep(works, self.state))
                return
            kept = [place.parameter for place in places if steps[place.group].stores.compensating]
            self._writes.look(kept)
            for watch in self.watches:
                watch.see(works)
            with self.whole.changing("a step"):
                for work in works:
                    if work.moved:
                        work.on.move(work.moved, work.inputs)
                    for p, state in zip(work.parameters, work.states, strict=True):
                        self.state[p] = state  # not before, as checks and watches may raise
                        state["step"] = work.inputs.number
            # Autograd did not see these writes, and could not tell that a graph has become stale.
            torch.autograd.graph.increment_version([local(tensor) for tensor in given])
            self._writes.made(kept, () if in_operator else given)

    def _works(
        self, steps: Mapping[int, Steps], places: Sequence[ParameterPlace], given: Tensors, gradients: Tensors
    ) -> list[Work]:
        """Return the work to do: one entry for all parameters that make one step together."""
        groups = {which: self.param_groups[which] for which in steps}
        staged = self._declaration.staged
        before = offsets({x.parameter: tuple(x.parameter.shape) for x in self.listed()}) if staged else {}
        for group in groups.values():
            check_flags(group)
        declared = {which: self._declared(group) for which, group in groups.items()}
        works, first_process = dict[Any, Work](), is_first_process()
        end = 0  # of the elements so far; they are numbered as they come if their numbers do not matter
        for (which, within, p, first), tensor, gradient in zip(places, given, gradients, strict=True):
            if groups[which]["maximize"]:
                gradient = opposite(gradient)
            state = self.state.get(p) or self._start(p, groups[which])
            slots, on_whole = None, steps[which].whole
            if on_whole is not None:
                name = name_in(groups[which], within)
                slots = on_whole.slots(declared[which][0], name, tuple(p.shape))
            steps[which].stores.check_state(tensor, state, slots)
            count, device = state["step"] + 1, gradient.device
            if (which, count, device) not in works:
                on = steps[which].carrier(host=_is_host(device), repeated=groups[which]["capturable"])
                hyper, rate = declared[which]
                inputs = StepInputs.of(hyper, count, rate, on.stores)  # raises if the step cannot be made
                works[which, count, device] = Work(which, on, [], [], [], inputs)
            work = works[which, count, device]
            work.parameters.append(p)
            work.states.append(state)
            tensors, counted = {**state, "parameter": tensor.detach()}, is_first_copy(p, first_process)
            if staged or (steps[which].on_grid and is_cut(p)):
                whole = WholeTensor(name_in(groups[which], within), before[p]) if staged else None
                work.moved.append(whole_slice(tensors, gradient, first, counted, whole))
            elif steps[which].numbered:
                work.moved.extend(local_parts(steps[which].stores, tensors, gradient, first, counted))
            else:
                work.moved.append(ParameterSlice(local_tensors(tensors), gradient, end, counted))
                end += gradient.numel()
        return list(works.values())

    def before_replay(self, which: int = -1) -> None:
        """Count the step that a captured CUDA graph is about to make, and hand over the step's inputs.

        Call it once before each replay, on the stream of the replay. A step made while a graph is captured
        becomes part of that graph, and must be its only one. A replay without this call changes no parameter.
        Learning rates and hyperparameters are those that the groups have now, so schedulers work as usual.

        Parameters
        ----------
        which : int, optional
            The index of the captured step, in order of capture; by default the last one.

        Raises
        ------
        IndexError
            If no such step was captured.
        RuntimeError
            If the graph cannot make the step: parameters or state have moved in memory, or have made
            different numbers of steps; or decay became zero, or was zero, so that other operations are
            needed. Nothing has changed then.
        """
        if not -len(self._captured) <= which < len(self._captured):
            made = len(self._captured) or "no"
            raise IndexError(f"{made} steps of this optimizer were captured in a CUDA graph: none is {which}")
        self._check_watches()
        self.whole.check()
        with torch.no_grad():
            self._captured[which].before_replay(self.state, self._replayed, self.whole)

    def _replayed(self, which: int, number: int) -> StepInputs:
        """Return the inputs of the step that a captured graph makes of a group."""
        group = self.param_groups[which]
        hyper, rate = self._declared(group)
        return StepInputs.of(hyper, number, rate, self.steps_of(group).stores)

    def _check_capture(self, places: Sequence[ParameterPlace]) -> None:
        """Raise RuntimeError unless this step may be part of the graph that is being captured."""
        self._check_watches()
        for group in self.param_groups:
            for name, given in group.items():
                x = given[0] if isinstance(given, tuple) else given
                if isinstance(x, torch.Tensor) and not _is_host(x.device):
                    raise RuntimeError(
                        f"a graph cannot wait for {name}, a tensor on {x.device}; make it a number"
                    )
        if not all(self.state[place.parameter] for place in places):
            raise RuntimeError(
                "a parameter has no state yet, which a graph would make anew each time; make a step before "
                "capturing"
            )

    def _check_watches(self) -> None:
        if self.watches:
            raise RuntimeError("steps of a captured graph cannot be watched or recorded; remove what does")

    def _start(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return a parameter's state before the first step: zeros, and a master copy if there is one."""
        slots = self._slots(parameter, group)
        with torch.inference_mode(False):  # whatever a first step is made in, later ones can write it
            return {"step": 0, **self.steps_of(group).stores.begun(parameter, slots=slots)}

    def _slots(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> Slots | None:
        """Return the parts that a step in stages keeps of a parameter; None for a straight line."""
        if (whole := self.steps_of(group).whole) is None:
            return None
        within = next(place for place, p in enumerate(group["params"]) if p is parameter)
        hyper, _ = self._declared(group)
        return whole.slots(hyper, name_in(group, within), tuple(parameter.shape))

    def represented(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the parameter that the optimizer represents, as a new float64 tensor.

        It is the sum of the parameter's components, the sum of the parameter and Kahan's compensation, or
        the master copy. A sum that needs more than 53 bits is rounded. A tensor that is no parameter of
        this optimizer raises ValueError.
        """
        self.whole.check()
        group, whole = self.group_of(parameter), parameter.detach()
        stores = self.steps_of(group).stores
        state = self.state.get(parameter) or self._start(parameter, group)
        tensors = local_tensors({**state, "parameter": whole})
        return spread_as(whole, summed(stores.represented(tensors)))

    def resync(self, *parameters: torch.Tensor) -> None:
        """Reset the state to the numbers that parameters hold now, after something else wrote them.

        Call it after other code has written weights that are to stay: averaged, pruned or loaded ones. Master
        copies are made anew. Compensations and further components become zero. Moments and step counts stay.

        Parameters
        ----------
        *parameters : tensor
            Parameters of this optimizer; by default all of them.

        Raises
        ------
        ValueError
            If a tensor is no parameter of this optimizer, or not of its state's shape; then nothing has
            changed.
        """
        chosen = parameters or [p for group in self.param_groups for p in group["params"]]
        self.whole.check()
        found = [(p, self.steps_of(self.group_of(p)).stores) for p in chosen]
        for p, stores in found:
            if state := self.state.get(p):
                stores.check_state(p, state, self._slots(p, self.group_of(p)))
        with torch.no_grad(), self.whole.changing("a resync"):
            for p, stores in found:
                self._writes.made([p])
                if state := self.state.get(p):
                    for name, x in stores.begun(p, stores.compensating).items():
                        state[name].copy_(x)

    def group_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Return the group of a parameter; raise ValueError if it has none."""
        groups = (group for group in self.param_groups if any(parameter is p for p in group["params"]))
        if (group := next(groups, None)) is None:
            raise ValueError("the tensor is no parameter of this optimizer")
        return group

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "defaults" in state:
            self._begin()
        else:  # torch calls this with loaded state alone; `load_state_dict` writes the last part of it
            self.whole.begin("loading a state")
        super().__setstate__(state)


def _is_host(device: torch.device) -> bool:
    """Return whether NumPy can use the tensors of a device."""
    return bool(device.type == "cpu")
