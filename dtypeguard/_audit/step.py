"""Audits a step: which leaf of what it carries drifts, and on which line of source."""

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from .._guard.call import Call
from .._guard.carry import Carry, carry_of
from .._guard.guard_step import guard_step
from .._leaves.arguments import short
from .._leaves.compat import set_x64
from .._leaves.dtypes import is_weak, is_wide
from .._leaves.public import public
from .constants import Watch, bound
from .drift import Drift
from .lines import Lines, carried_drifts, is_small, wide_operations
from .report import AuditReport
from .trace_error import TraceError, reduce_error
from .traced import Inputs, Refused, Traced, trace_step


@public
def audit_step(
    step: Callable[..., Any],
    /,
    *args: Any,
    carry: int | str | tuple[int | str, ...] = 0,
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
            f"audit_step got kwargs={short(kwargs)}. Write a dict of arguments by name, "
            'such as kwargs={"key": key}.'
        )
    if not (x64 is None or isinstance(x64, bool)):
        raise TypeError(f"audit_step got x64={short(x64)}. Write True, False or None.")
    caller = sys._getframe(1)
    audited = _Audited(step, carry, returned, lambda: (args, kwargs))
    name = audited.resolved().step
    with contextlib.nullcontext() if x64 is None else set_x64(x64):
        return _audit(audited, name, is_small((args, kwargs)), caller)


def audit_made_step(
    step: Callable[..., Any],
    make: Callable[[], Inputs],
    carry: int | str | tuple[int | str, ...],
    returned: Any,
    name: str,
) -> AuditReport:
    """Audits a step on the arguments that a function makes.

    That function is traced as well, so that the line is told which made a leaf weak. It is
    run if it cannot be traced; what it raises then is raised.
    """
    audited = _Audited(step, carry, returned, make, traced_inputs=True)
    try:
        return _audit(audited, name, is_few=True)
    except Refused:
        return _audit(audited._replace(traced_inputs=False), name, is_few=True)


class _Audited(NamedTuple):
    step: Callable[..., Any]
    carry: int | str | tuple[int | str, ...]
    returned: Any
    make: Callable[[], Inputs]
    traced_inputs: bool = False
    types: Mapping[str, str] | None = None

    def resolved(self) -> Carry:
        return carry_of("audit_step", self.step, self.carry, self.returned)

    def trace(self) -> Traced:
        options = {"traced_inputs": self.traced_inputs, "types": self.types}
        return trace_step(self.step, self.resolved(), self.make, **options)

    def begun(self, drifts: Sequence[Drift]) -> "_Audited":
        """With a strongly typed first carry, and some leaves in the types they came to."""
        types = {drift.path: drift.after for drift in drifts if drift.kind == "dtype"}
        return self._replace(types=types)

    def names(self) -> Sequence[str]:
        """What the carries are called."""
        return Call(self.step, self.resolved(), *self.make()).names

    def guarded(self) -> "_Audited":
        guarded = guard_step(self.step, carry=self.carry, returned=self.returned)
        return self._replace(step=guarded)


def _audit(
    audited: _Audited, name: str, is_few: bool, caller: FrameType | None = None
) -> AuditReport:
    about = functools.partial(AuditReport, subject="step", name=name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a step warns of, it says when it runs
        watch = Watch()
        try:
            with watch if is_few else contextlib.nullcontext():
                traced = audited.trace()
        except Refused as refused:
            if refused.args == ("inputs",):
                raise
            error = reduce_error(refused.__cause__, *refused.args)
            return about(error=error, **_advice(audited, name, None, error))
        binding = functools.partial(bound, caller)
        lines = Lines(traced, watch if is_few else None, audited.trace, binding)
        drifts = tuple(carried_drifts(traced, lines, "carry"))
        inputs = map(traced.step.avals.__getitem__, traced.step.inputs)
        is_blind = not any(is_wide(aval) and not is_weak(aval) for aval in inputs)
        return about(
            drifts=drifts,
            wide_operations=tuple(wide_operations(traced.step)) if is_blind else (),
            compilations=2 if drifts else 1,
            **(_advice(audited, name, drifts) if drifts else {}),
        )


def _advice(
    audited: _Audited,
    name: str,
    drifts: tuple[Drift, ...] | None,
    error: TraceError | None = None,
) -> dict[str, Any]:
    """What mends a step, tried out: a guard, a strongly typed first carry, or both."""
    given = {"carry": audited.carry, "returned": audited.returned}
    defaults = {"carry": 0, "returned": None}
    options = [f", {key}={x!r}" for key, x in given.items() if x != defaults[key]]
    wrap = f"Wrap the step: dtypeguard.guard_step({name}{''.join(options)})."
    begin = lambda weak: _begin(audited, weak)
    if drifts and all(map(_was_weak, drifts)) and _left(audited.begun(drifts)) == ():
        return {"remedy": begin(drifts)}
    left = _left(audited.guarded())
    if left == ():
        return {"remedy": wrap}
    if isinstance(left, tuple) and all(map(_was_weak, left)):
        weak, left = left, _left(audited.begun(left).guarded())
        if left == ():
            return {"remedy": f"{wrap} {begin(weak)}"}
    if error and error.is_of_a_loop:
        is_counted = error.origin is not None and "fori_loop" in error.origin.code
        body = "body, carry=1" if is_counted else "body"
        return {"remedy": f"Wrap the body of that loop: dtypeguard.guard_step({body})."}
    told = error.message if error else ""
    why = (
        left if isinstance(left, str) else AuditReport(drifts=left, subject="step").headline
    )
    return {"refusal": "" if why == told else why}


def _was_weak(drift: Drift) -> bool:
    """Whether a leaf had not chosen its type: loops of JAX let it take another one."""
    return drift.kind in ("weak_type", "dtype") and drift.before.endswith(" (weak)")


def _left(audited: _Audited) -> tuple[Drift, ...] | str:
    """What drifts still; where it does not trace, why."""
    try:
        return tuple(carried_drifts(audited.trace(), None, "carry"))
    except Refused as refused:
        return reduce_error(refused.__cause__, "step").message


def _begin(audited: _Audited, drifts: Sequence[Drift]) -> str:
    """How the carry is to begin, so that these leaves have their types from the start."""
    told = [
        f"Start {drift.path} as {drift.after}: jnp.asarray(x, jnp.{drift.after})."
        for drift in drifts
        if drift.kind == "dtype"
    ]
    begins = lambda path, name: path == name or path.startswith((f"{name}[", f"{name}."))
    calls = [
        f"dtypeguard.strong({name})"
        for name in audited.names()
        if any(d.kind == "weak_type" and begins(d.path, name) for d in drifts)
    ]
    if calls:
        told.append(f"Begin with a strongly typed carry: {', '.join(calls)}.")
    return " ".join(told)
