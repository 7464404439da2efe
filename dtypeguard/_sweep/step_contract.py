"""The rules that a step with a stable carry keeps, each as a check.

As those of `contract.py` for an optimizer: a rule is broken if its check raises anything.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, tree_util

from .._carry.call import Call, SplitTree
from .._carry.carry import Carry
from .._guard.strong import strong
from .._leaves.dtypes import cast, dtype_of, is_weak
from .checks import Fault, same_types
from .sweep import one_line

_Carried = dict[str, Any]  # the array leaves of a carry, by path


class StepTrial:
    """A step with the arguments of its first call.

    Attributes:
        names: what each carry is called.
        carried: the array leaves of its first carry, by path: what a loop carries.
        others: the array leaves of its other arguments. Python numbers are none.

    Args:
        step: the step.
        carry: which of its arguments come back.
        args: its arguments.
        kwargs: those by name.
    """

    def __init__(
        self, step: Any, carry: Carry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ):
        self._call = Call(step, carry, args, kwargs)
        self.names = self._call.names
        self.carried = self._named(self._call.carried)
        self.others = self._call.rest.arrays

    def run(self, carried: _Carried, others: list[Any]) -> _Carried:
        """One step, from array leaves to array leaves."""
        left = iter(carried.values())
        given = [[next(left) for _ in parts.arrays] for parts in self._call.carried]
        return self._named(self._call.run(given, others))

    def begun_strongly(self) -> "StepTrial":
        """The same with a strongly typed first carry, each leaf an array of its own."""
        begun = copy.copy(self)
        begun.carried = strong(tree_util.tree_map(_as_array, self.carried))
        return begun

    def _named(self, parts: list[SplitTree]) -> _Carried:
        # In order, as `run` takes them: JAX sorts the keys of a dict.
        pairs = [
            (label + path, leaf)
            for label, each in zip(self._call.names, parts)
            for path, leaf in zip(each.paths, each.arrays)
        ]
        width = len(str(len(pairs)))
        return {f"{n:0{width}} {path}": leaf for n, (path, leaf) in enumerate(pairs)}


def _as_array(leaf: Any) -> Any:
    is_struct = isinstance(leaf, jax.ShapeDtypeStruct)
    return jnp.ones(leaf.shape, leaf.dtype) if is_struct else leaf


class BrokenRule(NamedTuple):
    """A rule that a step breaks, and how."""

    rule: str
    reason: str


def _types(step: Callable[[_Carried], _Carried], carried: _Carried) -> None:
    # What was weakly typed may come back strongly typed; a compilation tells of that.
    strong = lambda x: x if dtype_of(x) is None else cast(x, dtype_of(x))
    after = step(carried)
    kept = {path: x for path, x in carried.items() if is_weak(after.get(path))}
    _same_types({path: strong(x) for path, x in carried.items()} | kept, after)


def _same_types(before: _Carried, after: _Carried) -> None:
    if [*before] != [*after]:
        other = sorted({*map(_path, before)} ^ {*map(_path, after)})
        raise Fault(f"only in one of what came in and went out: {', '.join(other)}")
    for path, leaf in before.items():
        same_types(_path(path), leaf, after[path])


def _path(name: str) -> str:
    return name.partition(" ")[2]


def _scan(step: Callable[[_Carried], _Carried], carried: _Carried) -> None:
    lax.scan(lambda carry, _: (step(carry), None), carried, None, length=2)


def _cond(step: Callable[[_Carried], _Carried], carried: _Carried) -> None:
    lax.cond(jnp.asarray(True), step, lambda carry: carry, carried)


def _while_loop(step: Callable[[_Carried], _Carried], carried: _Carried) -> None:
    lax.while_loop(lambda _: jnp.asarray(False), step, carried)


def _one_compilation(step: Callable[[_Carried], _Carried], carried: _Carried) -> None:
    _same_types(carried, step(carried))


def _donation(trial: StepTrial) -> None:
    carried = [(_path(name), leaf) for name, leaf in trial.carried.items()]
    owners: dict[int, str] = {}
    for name, leaf in [*carried, *(("another argument", x) for x in trial.others)]:
        pointer = _pointer(leaf)
        if pointer in owners and (name, owners[pointer]) != ("another argument",) * 2:
            raise Fault(f"{owners[pointer]} and {name} are one buffer")
        if pointer is not None:
            owners[pointer] = name


def _pointer(leaf: Any) -> int | None:
    """Where the buffer of an array is; None for what has none to give away."""
    if not isinstance(leaf, jax.Array) or not leaf.size or not leaf.is_fully_addressable:
        return None
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    data = jax.random.key_data(leaf) if is_key else leaf
    return data.addressable_data(0).unsafe_buffer_pointer()


def _traced(check: Callable[[Any, _Carried], None]) -> Callable[[StepTrial], None]:
    def rule(trial: StepTrial) -> None:
        def run(carried, others):
            check(lambda carried: trial.run(carried, others), carried)

        jax.eval_shape(run, trial.carried, trial.others)

    return rule


STEP_RULES: dict[str, Callable[[StepTrial], None]] = {
    "types": _traced(_types),
    "scan": _traced(_scan),
    "cond": _traced(_cond),
    "while_loop": _traced(_while_loop),
    "one_compilation": _traced(_one_compilation),
    "donation": _donation,
}


def broken_rules(trial: StepTrial, rules: Iterable[str]) -> Iterator[BrokenRule]:
    """The rules that a step breaks; "traces" alone where it raises by itself."""
    try:
        jax.eval_shape(trial.run, trial.carried, trial.others)
    except Exception as error:
        yield BrokenRule("traces", one_line(error))
        return
    for rule in rules:
        try:
            STEP_RULES[rule](trial)
        except Exception as error:
            yield BrokenRule(rule, one_line(error))
