"""A jaxpr and all jaxprs inside it as one graph of values, to be walked backwards."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One equation that computes something itself.

    Attributes:
        primitive: its name.
        inputs: the values that it is given.
        equations: it, and the equations whose jaxpr it is in, from the inside out.
        order: its place in the program.
    """

    primitive: str
    inputs: tuple[int, ...]
    equations: tuple[Any, ...]
    order: int


class Graph:
    """The values of a closed jaxpr, numbered, with calls and loops resolved.

    Where a value goes through the boundary of a `jit`, a loop or a branch it has another
    number on the other side and an entry in `same`.

    Attributes:
        avals: the abstract value of each.
        made_by: the step that computes it; inputs, constants and what crosses a boundary
            have none.
        same: for a value that crosses a boundary, what it may be.
        constants: values that no equation makes, literals and what was closed over, each
            with the equation that uses it first, as `Step.equations`.
        inputs: the arguments of the whole.
        outputs: its results.
        steps: all of them in the order of the program.
    """

    def __init__(self, closed_jaxpr: Any):
        self.avals: list[Any] = []
        self.made_by: dict[int, Step] = {}
        self.same: dict[int, list[int]] = {}
        self.constants: dict[int, tuple[Any, ...]] = {}
        self.steps: list[Step] = []
        self._reached: dict[int, int] | None = None
        self.inputs = [self._new(var.aval) for var in closed_jaxpr.jaxpr.invars]
        self.outputs = self._add(closed_jaxpr.jaxpr, self.inputs, ())

    def origins(self, value: int) -> int:
        """Which of `inputs` a value depends on, as the bits of an integer."""
        if self._reached is None:
            self._reached = self._reach()
        return self._reached.get(value, 0)

    def _reach(self) -> dict[int, int]:
        reached = {value: 1 << number for number, value in enumerate(self.inputs)}
        changed = True
        while changed:  # more than once only where a loop feeds values back
            changed = False
            for value in range(len(self.avals)):
                step = self.made_by.get(value)
                bits = reached.get(value, 0)
                for source in step.inputs if step else self.same.get(value, ()):
                    bits |= reached.get(source, 0)
                if bits != reached.get(value, 0):
                    reached[value] = bits
                    changed = True
        return reached

    def _new(self, aval: Any, same: Sequence[int] = ()) -> int:
        self.avals.append(aval)
        value = len(self.avals) - 1
        if same:
            self.same[value] = list(same)
        return value

    def _add(self, jaxpr: Any, inputs: Sequence[int], outer: tuple[Any, ...]) -> list[int]:
        known = dict(zip(jaxpr.invars, inputs))

        def read(var: Any, *user: Any) -> int:
            is_literal = hasattr(var, "val")
            if not is_literal and var in known:
                return known[var]
            value = self._new(var.aval)
            self.constants[value] = (*user, *outer)
            if not is_literal:
                known[var] = value
            return value

        for equation in jaxpr.eqns:
            given = [read(var, equation) for var in equation.invars]
            equations = (equation, *outer)
            made = self._enter(equation, given, equations)
            if made is None:
                step = Step(
                    equation.primitive.name, tuple(given), equations, len(self.steps)
                )
                self.steps.append(step)
                made = [self._new(var.aval) for var in equation.outvars]
                self.made_by |= dict.fromkeys(made, step)
            known |= zip(equation.outvars, made)
        return [read(var) for var in jaxpr.outvars]

    def _enter(
        self, equation: Any, given: list[int], equations: tuple[Any, ...]
    ) -> list[int] | None:
        """The outputs of an equation that has jaxprs of its own; None if it has none."""
        params = equation.params
        add: Callable[[Any, Sequence[int]], list[int]] = lambda closed, inputs: self._add(
            getattr(closed, "jaxpr", closed), inputs, equations
        )
        outputs = [self._new(var.aval) for var in equation.outvars]
        if equation.primitive.name == "cond":
            for branch in params["branches"]:
                self._join(outputs, add(branch, given[1:]))
        elif equation.primitive.name == "while":
            consts = params["cond_nconsts"]
            start = consts + params["body_nconsts"]
            carry = [self._new(self.avals[value], [value]) for value in given[start:]]
            self._join(carry, add(params["body_jaxpr"], given[consts:start] + carry))
            self._join(outputs, carry)
        elif equation.primitive.name == "scan":
            closed, consts, count = (
                params["jaxpr"],
                params["num_consts"],
                params["num_carry"],
            )
            inner = closed.jaxpr.invars
            # Inside, the scanned arrays have an axis less, and the carry comes round again.
            entered = [
                self._new(var.aval, [value])
                for var, value in zip(inner[consts:], given[consts:])
            ]
            made = add(closed, given[:consts] + entered)
            self._join(entered[:count], made[:count])
            self._join(outputs, entered[:count] + made[count:])
        else:
            for inside in _jaxprs(params):
                if (len(inside.invars), len(inside.outvars)) == (len(given), len(outputs)):
                    self._join(outputs, add(inside, given))
                    break
            else:
                return None
        return outputs

    def _join(self, values: Sequence[int], others: Sequence[int]) -> None:
        for value, other in zip(values, others):
            self.same.setdefault(value, []).append(other)


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    for name, param in params.items():
        jaxpr = getattr(param, "jaxpr", param)
        if hasattr(jaxpr, "eqns") and name != "update_jaxpr":
            yield jaxpr
