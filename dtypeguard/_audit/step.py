"""Audits a step: which leaves of its carry drift, and on which line of source."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .._carry.call import Call
from .._carry.carry import carry_of
from .._guard.guard_step import guard_step
from .._leaves.arguments import check_names
from .._leaves.rows import dtype_text, lost
from .._leaves.types import Args, DType, Key, Kwargs, PyTree, Step
from .._lines.drift import Drift
from .._program.trace import Program, TraceFailed, trace
from .examine import Advice, check_x64, examine, left, refused
from .report import AuditReport
from .trace_error import TraceError

Arguments = tuple[Args, Kwargs]
Which = int | str | tuple[int | str, ...]
Returned = Key | tuple[Key, ...] | None


def audit_step(
    step: Step,
    /,
    *args: PyTree,
    carry: Which = 0,
    returned: Returned = None,
    kwargs: Mapping[str, PyTree] | None = None,
    x64: bool | None = None,
) -> AuditReport:
    """What `audit` is for a step."""
    kwargs = {} if kwargs is None else kwargs
    check_names("audit", "kwargs", kwargs)
    check_x64("audit", x64)
    name = carry_of("audit", step, carry, returned).step
    return examine(_Step(step, carry, returned, lambda: (args, kwargs), name), x64)


def audit_made_step(
    step: Step, make: Callable[[], Arguments], carry: Which, returned: Returned, name: str
) -> AuditReport:
    """Audits a step on the arguments that a function makes, which it traces if it can."""
    subject = _Step(step, carry, returned, make, name, is_made=True, needs_arrays=True)
    try:
        return examine(subject, None)
    except TraceFailed:
        return examine(subject._replace(is_made=False), None)


def guarding(name: str, carry: Which, returned: Returned) -> str:
    """How to write the guard of a step."""
    options = "" if carry == 0 else f", carry={carry!r}"
    options += "" if returned is None else f", returned={returned!r}"
    return f"dtypeguard.guard_step({name}{options})"


class _Step(NamedTuple):
    """A step and what makes its arguments."""

    step: Step
    carry: Which
    returned: Returned
    make: Callable[[], Arguments]
    name: str
    is_made: bool = False
    needs_arrays: bool = False

    kind = "step"

    def call(self) -> Call:
        """The call to audit."""
        try:
            args, kwargs = self.make()
        except Exception as error:
            raise TraceFailed("inputs") from error
        carry = carry_of("audit", self.step, self.carry, self.returned)
        call = Call(self.step, carry, args, kwargs)
        if self.needs_arrays and not any(tree.arrays for tree in call.carried):
            raise ValueError(
                f"{self.name} carries {', '.join(call.names)}, in which there is no array: "
                "nothing would be checked. Write carry=NAME, of what comes back."
            )
        return call

    def trace(self, types: Mapping[str, DType] | None = None) -> Program:
        """Traces it; see `trace`."""
        return trace(self.call, is_made=self.is_made, types=types)

    def advice(self, drifts: tuple[Drift, ...], error: TraceError | None) -> Advice:
        """A guard, a first carry of other types, or both."""
        if _are_weak(drifts) and left(lambda: self.trace(_types(drifts))) == ():
            return Advice(remedy=self._begin(drifts))
        step = guard_step(self.step, carry=self.carry, returned=self.returned)
        guarded = self._replace(step=step)
        wrap = f"Wrap the step: {guarding(self.name, self.carry, self.returned)}."
        # A guard casts such leaves, and leaves what keeps its type as it is.
        is_sure = not error and all(x.is_castable and not x.was_weak for x in drifts)
        still = () if is_sure else left(guarded.trace)
        if still == ():
            return Advice(remedy=wrap)
        if not isinstance(still, str) and _are_weak(still):
            first = still
            still = left(lambda: guarded.trace(_types(first)))
            if still == ():
                return Advice(remedy=f"{wrap} {self._begin(first)}")
        if error and error.is_of_a_loop:
            is_counted = error.origin is not None and "fori_loop" in error.origin.code
            body = "body, carry=1" if is_counted else "body"
            remedy = f"Wrap the body of that loop: dtypeguard.guard_step({body})."
            return Advice(remedy=remedy)
        if error and error.is_of_optimizer:
            return Advice(remedy="Wrap the optimizer: dtypeguard.guard(opt).")
        return refused(still, "step")

    def _begin(self, drifts: Sequence[Drift]) -> str:
        """How the carry has to begin, for these leaves to have their types at once."""
        advice = [
            f"Start {drift.path} as {drift.after}: jnp.asarray(x, "
            f"{dtype_text(drift.after)}){lost(*(aval.dtype for aval in drift.avals))}."
            for drift in drifts
            if drift.kind == "dtype"
        ]
        is_in = lambda path, name: path == name or path.startswith((f"{name}[", f"{name}."))
        weak = [drift.path for drift in drifts if drift.kind == "weak_type"]
        holders = [x for x in self.call().names if any(is_in(path, x) for path in weak)]
        calls = [f"dtypeguard.strong({name})" for name in holders]
        if calls:
            advice.append(f"Begin with a strongly typed carry: {', '.join(calls)}.")
        return " ".join(advice)


def _are_weak(drifts: Sequence[Drift]) -> bool:
    return bool(drifts) and all(each.was_weak for each in drifts)


def _types(drifts: Sequence[Drift]) -> dict[str, DType]:
    """The dtypes in which these leaves have to begin, by path."""
    return {each.path: each.avals[1].dtype for each in drifts if each.kind == "dtype"}
