"""Audits a step: which leaf of what it carries drifts, and on which line of source."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._carry.call import Call
from .._carry.carry import carry_of
from .._find.drift import Drift
from .._guard.guard_step import guard_step
from .._leaves.arguments import shown
from .._leaves.public import public
from .._leaves.types import DType, Step
from .._program.lines import is_small
from .._program.trace import Program, TraceFailed, trace
from .._program.watch import bound
from .examine import Advice, Kind, check_x64, examine, left
from .report import AuditReport
from .trace_error import TraceError

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
_Which = int | str | tuple[int | str, ...]


@public
def audit_step(
    step: Step,
    /,
    *args: Any,
    carry: _Which = 0,
    returned: Any = None,
    kwargs: dict[str, Any] | None = None,
    x64: bool | None = None,
) -> AuditReport:
    """Finds the leaves that change their types in one step, and the lines that do it.

    What a step carries has to come back in the types that it went in with: `lax.scan`
    raises if it does not, a jitted step compiles twice, and JAX names the leaf but not the
    line. Nothing is computed and nothing is allocated: the step is traced for shapes and
    dtypes alone.

    Args:
        step: a function that takes what it carries and returns it. It is audited as it
            is: guarded, it should be clean.
        *args: its arguments, with arrays or `jax.ShapeDtypeStruct`s for leaves. Functions,
            strings and the like are handed on as they are, and so are Python numbers that
            are not carried.
        carry: the argument that comes back, by position or name, or a tuple of them.
        returned: the item of the result that it comes back as, or a tuple of as many; by
            default as in [`dtypeguard.guard_step`][].
        kwargs: its arguments by name.
        x64: whether `jax_enable_x64` is on; by default as the caller has it.

    Returns:
        An `AuditReport`; print it. A drift's `path` begins with the name of the parameter.
        For a leaf that was weakly typed at first its `origin` is the line where the
        caller named what it is in, since the line that made it has run by then.

    Raises:
        TypeError: if `step` cannot be called, or does not return what it carries.
        ValueError: if it has no such argument.

    Example:
        >>> import dtypeguard, jax, jax.numpy as jnp
        >>> def step(state, x):
        ...     count, mean = state
        ...     return (count + 1, mean + (x - mean) / count), x
        >>> state = jnp.zeros((), jnp.int32), jnp.zeros(3, jnp.bfloat16)
        >>> x = jax.ShapeDtypeStruct((3,), jnp.float32)
        >>> report = dtypeguard.audit_step(step, state, x)
        >>> [(drift.path, drift.before, drift.after) for drift in report.drifts]
        [('state[1]', 'bfloat16', 'float32')]
    """
    kwargs = {} if kwargs is None else kwargs
    if not (isinstance(kwargs, dict) and all(isinstance(name, str) for name in kwargs)):
        raise TypeError(
            f"audit_step got kwargs={shown(kwargs)}. Write a dict of arguments by name, "
            'such as kwargs={"key": key}.'
        )
    check_x64("audit_step", x64)
    subject = _Step(step, carry, returned, lambda: (args, kwargs))
    return examine(subject, x64, functools.partial(bound, sys._getframe(1)))


def audit_made_step(
    step: Step, make: Callable[[], Arguments], carry: _Which, returned: Any, name: str
) -> AuditReport:
    """Audits a step on the arguments that a function makes.

    That function is traced as well, to find the line that made a leaf weak. It is run if it
    cannot be traced; what it raises then is raised.
    """
    subject = _Step(step, carry, returned, make, is_made=True, name=name)
    try:
        return examine(subject, None)
    except TraceFailed:
        subject.is_made = False
        return examine(subject, None)


class _Step:
    """A step with its arguments."""

    kind: Kind = "step"

    def __init__(
        self,
        step: Step,
        carry: _Which,
        returned: Any,
        make: Callable[[], Arguments],
        *,
        is_made: bool = False,
        name: str = "",
    ):
        self.step = step
        self.places = {"carry": carry, "returned": returned}
        self.make = make
        self.is_made = is_made
        self.name = name or carry_of("audit_step", step, carry, returned).step
        self.is_small = is_made or is_small(make())

    def call(self) -> Call:
        """The call that is audited."""
        try:
            args, kwargs = self.make()
        except Exception as error:
            raise TraceFailed("inputs") from error
        carry = carry_of("audit_step", self.step, **self.places)
        return Call(self.step, carry, args, kwargs)

    def trace(self, types: Mapping[str, DType] | None = None) -> Program:
        """Traces it; see `trace`."""
        return trace(self.call, is_made=self.is_made, types=types)

    def advice(self, drifts: tuple[Drift, ...], error: TraceError | None) -> Advice:
        """A guard, a first carry that begins in other types, or both."""
        defaults = {"carry": 0, "returned": None}
        given = {key: x for key, x in self.places.items() if x != defaults[key]}
        options = "".join(f", {key}={x!r}" for key, x in given.items())
        wrap = f"Wrap the step: dtypeguard.guard_step({self.name}{options})."
        guarded = _Step(
            guard_step(self.step, **self.places),
            **self.places,
            make=self.make,
            is_made=self.is_made,
        )
        is_weak = bool(drifts) and all(each.was_weak for each in drifts)
        if is_weak and left(lambda: self.trace(_types(drifts))) == ():
            return Advice(remedy=self._begin(drifts))
        still = left(guarded.trace)
        if still == ():
            return Advice(remedy=wrap)
        if isinstance(still, tuple) and all(each.was_weak for each in still):
            begun = still
            still = left(lambda: guarded.trace(_types(begun)))
            if still == ():
                return Advice(remedy=f"{wrap} {self._begin(begun)}")
        if error and error.is_of_a_loop:
            is_counted = error.origin is not None and "fori_loop" in error.origin.code
            body = "body, carry=1" if is_counted else "body"
            remedy = f"Wrap the body of that loop: dtypeguard.guard_step({body})."
            return Advice(remedy=remedy)
        if error and error.is_of_optimizer:
            return Advice(remedy="Wrap the optimizer: dtypeguard.guard(opt).")
        if isinstance(still, tuple):
            still = AuditReport(drifts=still, subject="step").headline
        return Advice(refusal="" if error and still == error.message else still)

    def _begin(self, drifts: Sequence[Drift]) -> str:
        """How the carry is to begin, for these leaves to have their types at once."""
        told = [
            f"Start {drift.path} as {drift.after}: jnp.asarray(x, jnp.{drift.after})."
            for drift in drifts
            if drift.kind == "dtype"
        ]
        is_in = lambda path, name: path == name or path.startswith((f"{name}[", f"{name}."))
        weak = [drift.path for drift in drifts if drift.kind == "weak_type"]
        calls = [
            f"dtypeguard.strong({name})"
            for name in self.call().names
            if any(is_in(path, name) for path in weak)
        ]
        if calls:
            told.append(f"Begin with a strongly typed carry: {', '.join(calls)}.")
        return " ".join(told)


def _types(drifts: Sequence[Drift]) -> dict[str, str]:
    """The types in which these leaves are to begin, by path."""
    return {drift.path: drift.after for drift in drifts if drift.kind == "dtype"}
