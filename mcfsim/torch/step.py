"""An optimizer of PyTorch that makes the steps of `mcfsim.optim` on the tensors of a model, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from mcfsim.backends.factory import arithmetic
from mcfsim.backends.strung_tensors import check_dense
from mcfsim.checks.processor import check_processor
from mcfsim.checks.whole import Whole
from mcfsim.optim.declaration import Declaration
from mcfsim.optim.vanishing import warn_of_vanishing
from mcfsim.torch import operator
from mcfsim.torch.captured import CapturedStep, capturing
from mcfsim.torch.group import LABELS, Hyperparameters, check_flags
from mcfsim.torch.grouped import SCALES
from mcfsim.torch.local import is_first_copy, is_spread, local, placed_as, spread_as, stretches
from mcfsim.torch.moved import Moved, Stores, opposite, summed
from mcfsim.torch.settings import Settings, Steps
from mcfsim.torch.state_dicts import SavedOptimizer
from mcfsim.torch.work import ParameterPlace, Watching, Work
from mcfsim.torch.writes import Writes


class StoredOptimizer(SavedOptimizer):
    """A step of `mcfsim.optim` on packed tensors: by NumPy on the CPU, by kernels on a GPU."""

    #: Whose step it makes, and the defaults in which it differs from that.
    _declaration: ClassVar[type[Declaration]]
    _defaults: ClassVar[Mapping[str, Any]] = {}
    _hyperparameters: ClassVar[Hyperparameters]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "_declaration" in vars(cls):
            cls._hyperparameters = Hyperparameters(cls._declaration, cls._defaults)
        own = "__init__" in vars(cls)
        cls.__signature__ = None if own else cls._hyperparameters.constructor

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
    def _hyper(cls, group: Mapping[str, Any]) -> Declaration:
        """Return the hyperparameters of a group."""
        return cls._declaration(**cls._hyperparameters.of(group))

    def _begin(self) -> None:
        """Make what is neither saved nor copied."""
        self._number = operator.enrolled(self)
        self._made: dict[Settings, Steps] = {}
        self._writes = Writes()
        self.watches: list[Watching] = []
        self.whole = Whole("load what was saved together, the model's state and the optimizer's")
        self._captured: list[CapturedStep] = []

    def steps_of(self, group: Mapping[str, Any]) -> Steps:
        """Return what carries out the steps of a group; it is made once for all with the same settings."""
        settings = Settings.of(group)
        if settings not in self._made:
            self._made[settings] = Steps(self._declaration, settings)
        return self._made[settings]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own hyperparameters and settings; see `torch.optim.Optimizer`.

        A parameter that is in it twice is warned of, as by torch, and moves once. What the group says that is
        unknown or out of range is refused, and the group not added.
        """
        group = param_group
        if isinstance(param_group, dict):
            group = self._hyperparameters.received("a group", param_group, LABELS)
        super().add_param_group(group)
        group = self.param_groups.pop()  # it comes back once it is found good
        _without_doubles(group)
        self._check_group(group)
        Settings.settled(group)
        stores = self.steps_of(group).stores
        rate, entering = self._hyperparameters.rate(group), self._hyper(group).entering()
        for role in {**entering, "update": {}}:
            scalars = entering.get(role, {})
            warn_of_vanishing(stores.roles.of(role), {**scalars, "lr": rate} if role == "update" else scalars)
        for parameter in group["params"]:
            self._check(parameter, stores)
            stores.check_scales(parameter)
        self.param_groups.append(group)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a number or flag of a group is out of range."""
        check_flags(group)
        self._hyper(group)
        self._hyperparameters.rate(group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step with the gradients, each rounded into the strategy's gradient format.

        A closure, if given, computes the gradients first, and what it returns is returned. A parameter or
        gradient that is no dense tensor of the right dtype raises TypeError, before anything changes. In what
        ``torch.compile`` makes of a training step this is one operator, with the same bits. A step that is
        broken off half-way, by KeyboardInterrupt say, spoils parameters and state: until a state is loaded,
        each further step raises `mcfsim.checks.whole.SpoiltStateError`.
        """
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        places = self.listed()
        moving = [index for index, place in enumerate(places) if place.parameter.grad is not None]
        given = [places[index].parameter for index in moving]
        gradients = [p.grad for p in given]
        if torch.compiler.is_compiling():
            operator.step(self._number, moving, given, gradients)
        else:
            self.advance([places[index] for index in moving], given, gradients)
        return loss

    def listed(self) -> list[ParameterPlace]:
        """Return the places of all parameters, counted through all groups."""
        found, first = [], 0
        for group, given in enumerate(self.param_groups):
            for within, p in enumerate(given["params"]):
                found.append(ParameterPlace(group, within, p, first))
                first += p.numel()
        return found

    def is_at(self, place: ParameterPlace) -> bool:
        """Return whether a parameter still is at its place."""
        if place.group >= len(self.param_groups):
            return False
        group = self.param_groups[place.group]["params"]
        return place.within < len(group) and group[place.within] is place.parameter

    def advance(
        self,
        places: Sequence[ParameterPlace],
        given: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
    ) -> None:
        """Make one step of the parameters at some places, for which tensors are given that stand for them.

        Raises
        ------
        TypeError, ValueError
            As `step` does, before anything changes.
        """
        check_processor()
        self.whole.check()
        steps = {which: self.steps_of(self.param_groups[which]) for which in {x.group for x in places}}
        with torch.no_grad():
            for place, tensor in zip(places, given, strict=True):
                self._check(tensor, steps[place.group].stores)
            received = [placed_as(tensor, x) for tensor, x in zip(given, gradients, strict=True)]
            for gradient in received:
                check_dense(gradient)
            if in_graph := capturing():
                self._check_capture(places)
            works = self._works(steps, places, given, received)
            if in_graph:
                self._captured.append(CapturedStep(works, self.state))
                return
            kept = [place.parameter for place in places if steps[place.group].stores.compensating]
            self._writes.look(kept)
            for watch in self.watches:
                watch.see([work for _, work in works])
            for _, work in works:
                work.check()
            with self.whole.changing("a step"):
                for together, work in works:
                    if work.moved:
                        work.on.move(work.moved, work.hyper, work.count, work.rate)
                    for p in together:
                        self.state[p]["step"] = work.count
            # Autograd did not see the writing, and could not tell that a graph has become stale.
            torch.autograd.graph.increment_version([local(tensor) for tensor in given])
            self._writes.made(kept, given)

    def _works(
        self,
        steps: Mapping[int, Steps],
        places: Sequence[ParameterPlace],
        given: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
    ) -> list[tuple[list[torch.Tensor], Work]]:
        """Return what is to be done, and the parameters that it is done to: those of each step together."""
        groups = {which: self.param_groups[which] for which in steps}
        for group in groups.values():
            check_flags(group)
        rates = {which: self._hyperparameters.rate(group) for which, group in groups.items()}
        hyper = {which: self._hyper(group) for which, group in groups.items()}  # as schedulers left them
        works: dict[Any, tuple[list[torch.Tensor], Work]] = {}
        end = 0  # of the elements here, numbered as they come where their numbers do not matter
        for (which, _, p, first), tensor, gradient in zip(places, given, gradients, strict=True):
            if groups[which]["maximize"]:
                gradient = opposite(gradient)
            state = self.state[p] = self.state[p] or self._start(p, steps[which].stores)
            count, device = state["step"] + 1, gradient.device
            if (which, count, device) not in works:
                on = steps[which].carrier(host=_is_host(device), repeated=groups[which]["capturable"])
                works[which, count, device] = [], Work(which, on, [], hyper[which], count, rates[which])
            together, work = works[which, count, device]
            together.append(p)
            tensors, counted = {**state, "parameter": tensor.detach()}, is_first_copy(p)
            if steps[which].numbered:
                work.moved.extend(_parts(steps[which].stores, tensors, gradient, first, counted))
            else:
                work.moved.append(Moved(_here(tensors), gradient, end, counted))
                end += gradient.numel()
        return list(works.values())

    def before_replay(self, which: int = -1) -> None:
        """Count the step that a captured CUDA graph is about to make, and hand over what the step needs.

        To be called once before each replay, on its stream. A step that was asked for while a graph was being
        captured is part of that graph, of which it is the only one; a replay to which nothing was handed over
        changes no parameter. Rates and hyperparameters are the groups' at this time, so schedulers work as
        ever.

        Parameters
        ----------
        which : int, optional
            Of the steps that were captured, in their order; by default the last one.

        Raises
        ------
        IndexError
            If no such step was captured.
        RuntimeError
            If the graph cannot make the step: parameters or state lie elsewhere, or have made different
            numbers of steps; or decay became zero, or was, so that other operations take part. Nothing has
            changed then.
        """
        if not -len(self._captured) <= which < len(self._captured):
            raise IndexError(f"{len(self._captured)} steps of this optimizer were captured: none is {which}")
        self._check_watches()
        self.whole.check()

        def settings(group: int) -> tuple[Declaration, float]:
            live = self.param_groups[group]
            return self._hyper(live), self._hyperparameters.rate(live)

        with torch.no_grad():
            self._captured[which].before_replay(self.state, settings, self.whole)

    def _check_capture(self, places: Sequence[ParameterPlace]) -> None:
        """Raise RuntimeError unless what is asked may be part of a graph that is being captured."""
        self._check_watches()
        for group in self.param_groups:
            for name, given in group.items():
                x = given[0] if isinstance(given, tuple) else given
                if isinstance(x, torch.Tensor) and not _is_host(x.device):
                    raise RuntimeError(
                        f"a graph cannot wait for {name}, a tensor on {x.device}; let it be a number"
                    )
        if not all(self.state[place.parameter] for place in places):
            raise RuntimeError(
                "a parameter has no state yet, which a graph would make anew each time; make a step before "
                "capturing"
            )

    def _check_watches(self) -> None:
        if self.watches:
            raise RuntimeError("steps of a captured graph cannot be watched; remove the watch first")

    def _start(self, parameter: torch.Tensor, stores: Stores) -> dict[str, Any]:
        """Return the state before the first step: zeros, and a master copy of the parameter."""
        names = [name for name in stores.dtypes if name != "parameter"]
        return {"step": 0, **self._begun(parameter, stores, names)}

    def _begun(
        self, parameter: torch.Tensor, stores: Stores, names: Sequence[str]
    ) -> dict[str, torch.Tensor]:
        """Return some tensors of the state before the first step."""
        state: dict[str, torch.Tensor] = {}
        whole = parameter.detach()
        for name in names:
            if stores.group(name):
                state[name] = stores.grouped[name.removesuffix(SCALES)].zero_scales(whole)
                continue
            dtype = stores.dtypes[name]
            state[name] = torch.zeros_like(whole, dtype=dtype, memory_format=torch.contiguous_format)
            if name in stores.grouped:
                state[name].fill_(stores.grouped[name].zero)
        if "master" in state:
            here = local(whole)
            ar = arithmetic(stores.formats["master"], backend="torch", device=here.device)
            local(state["master"]).copy_(ar.round(here))
        return state

    def _check(self, parameter: torch.Tensor, stores: Stores) -> None:
        expected = stores.dtypes["parameter"]
        if parameter.dtype != expected:
            raise TypeError(
                f"strategy {stores.strategy.name!r} stores parameters as {expected}, not {parameter.dtype}; "
                f"convert the model with .to({expected}), or choose another strategy or low format"
            )
        here = local(parameter.detach())
        check_dense(here)
        dimensions = zip(here.shape, here.stride(), strict=True)
        if here.numel() and any(size > 1 and not step for size, step in dimensions):
            raise TypeError("elements of the parameter share memory; make it a tensor of its own by .clone()")
        stores.check_groups(parameter)

    def represented(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the parameter that the optimizer means, as a new float64 tensor.

        It is the sum of the parameter's components, of the parameter and Kahan's compensation, or it is
        the master copy. A sum that needs more than 53 bits is rounded. A tensor that is no parameter of
        this optimizer raises ValueError.
        """
        self.whole.check()
        stores, whole = self._stores_of(parameter), parameter.detach()
        state = self.state.get(parameter) or self._start(parameter, stores)
        tensors = _here({**state, "parameter": whole})
        return spread_as(whole, summed(stores.represented(tensors)))

    def resync(self, *parameters: torch.Tensor) -> None:
        """Take the numbers that parameters hold now for those that are meant, after they were written to.

        To be called where something else than the optimizer has written weights that are to stay: of an
        average, pruned, or loaded ones. A master copy becomes the parameter, and what compensates roundings,
        or holds the rest of an expansion, zero, as before the first step; moments and counts stay.

        Parameters
        ----------
        *parameters : tensor
            Of this optimizer; all of them by default.

        Raises
        ------
        ValueError
            If a tensor is no parameter of this optimizer; then nothing has changed.
        """
        chosen = parameters or [p for group in self.param_groups for p in group["params"]]
        self.whole.check()
        found = [(p, self._stores_of(p)) for p in chosen]
        with torch.no_grad(), self.whole.changing("a resync"):
            for p, stores in found:
                self._writes.made([p])
                if state := self.state.get(p):
                    for name, x in self._begun(p, stores, stores.compensating).items():
                        state[name].copy_(x)

    def _stores_of(self, parameter: torch.Tensor) -> Stores:
        groups = (group for group in self.param_groups if any(parameter is p for p in group["params"]))
        if (group := next(groups, None)) is None:
            raise ValueError("the tensor is no parameter of this optimizer")
        return self.steps_of(group).stores

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "defaults" in state:
            self._begin()
        else:  # torch comes here with loaded state alone, of which the last is written by `load_state_dict`
            self.whole.begin("loading a state")
        super().__setstate__(state)


def _without_doubles(group: dict[str, Any]) -> None:
    """Leave the first of each parameter in a group, with its name."""
    places = {p: place for place, p in reversed(list(enumerate(group["params"])))}
    for name in ("params", "param_names"):
        if name in group:
            group[name] = [group[name][place] for place in sorted(places.values())]


def _parts(
    stores: Stores, tensors: Mapping[str, Any], gradient: torch.Tensor, first: int, counted: bool
) -> Iterator[Moved]:
    """Yield what lies here of a parameter and its state, as far as its elements follow one another."""
    here = _here(tensors)
    sizes = {name: size for name in here if (size := stores.group(name)) is not None}
    done = 0
    for begin, place in stretches(tensors["parameter"]):
        given = gradient[place]
        part = {name: x[place] for name, x in here.items() if name not in sizes}
        for name, size in sizes.items():
            rows = here[name].reshape(-1, stores.grouped[name.removesuffix(SCALES)].shared)
            part[name] = rows[done // size : -(-(done + given.numel()) // size)]
        done += given.numel()
        yield Moved(part, given, first + begin, counted)


def _here(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    spread = is_spread(tensors["parameter"])
    return {name: local(x) if spread else x for name, x in tensors.items() if name != "step"}


def _is_host(device: torch.device) -> bool:
    """Return whether tensors of a device are NumPy's, too."""
    return bool(device.type == "cpu")
