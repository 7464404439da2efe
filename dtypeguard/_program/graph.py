"""A jaxpr and all jaxprs inside it as one graph of values, to be walked backwards."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .._leaves.types import Aval, Jaxpr


class Equation(NamedTuple):
    """One equation of a jaxpr that computes something itself.

    Attributes:
        primitive: its name.
        inputs: the values that it is given.
        stack: JAX's own equation, and those whose jaxpr it is in, from the inside out.
    """

    primitive: str
    inputs: tuple[int, ...]
    stack: tuple[Any, ...]


class Graph:
    """The values of a closed jaxpr, numbered, with calls and loops resolved.

    Where a value goes through the boundary of a `jit`, a loop or a branch it has another
    number on the other side and an entry in `same`.

    Attributes:
        avals: the abstract value of each.
        made_by: the equation that computes it; inputs, constants and what crosses a
            boundary have none.
        same: for a value that crosses a boundary, what it may be.
        constants: values that no equation makes, literals and what was closed over, each
            with the equation that uses it first, as `Equation.stack`.
        inputs: the arguments of the whole.
        outputs: its results.
    """

    def __init__(self, closed_jaxpr: Jaxpr):
        self.avals: list[Any] = []
        self.made_by: dict[int, Equation] = {}
        self.same: dict[int, list[int]] = {}
        self.constants: dict[int, tuple[Any, ...]] = {}
        self._reached: dict[int, int] | None = None
        self.inputs = [self._new(aval) for aval in closed_jaxpr.in_avals]
        self.outputs = self._outputs(closed_jaxpr)

    def _outputs(self, closed_jaxpr: Jaxpr) -> list[int]:
        try:
            return self._add(closed_jaxpr.jaxpr, self.inputs, ())
        except Exception:  # an audit without its lines is better than none
            return self._opaque("jaxpr", self.inputs, closed_jaxpr.out_avals, ())

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
                equation = self.made_by.get(value)
                bits = reached.get(value, 0)
                for source in equation.inputs if equation else self.same.get(value, ()):
                    bits |= reached.get(source, 0)
                if bits != reached.get(value, 0):
                    reached[value] = bits
                    changed = True
        return reached

    def _new(self, aval: Aval, same: Sequence[int] = ()) -> int:
        self.avals.append(aval)
        value = len(self.avals) - 1
        if same:
            self.same[value] = list(same)
        return value

    def _add(
        self, jaxpr: Jaxpr, inputs: Sequence[int], outer: tuple[Any, ...]
    ) -> list[int]:
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

        for eqn in jaxpr.eqns:
            given = [read(var, eqn) for var in eqn.invars]
            stack = (eqn, *outer)
            try:
                made = self._enter(eqn, given, stack)
            except Exception:  # JAX has changed what is inside of it
                made = None
            if made is None:
                avals = [var.aval for var in eqn.outvars]
                made = self._opaque(eqn.primitive.name, given, avals, stack)
            known |= zip(eqn.outvars, made)
        return [read(var) for var in jaxpr.outvars]

    def _opaque(
        self, name: str, given: Sequence[int], avals: Sequence[Any], stack: tuple[Any, ...]
    ) -> list[int]:
        """The outputs of an equation that is not looked into."""
        equation = Equation(name, tuple(given), stack)
        made = [self._new(aval) for aval in avals]
        self.made_by |= dict.fromkeys(made, equation)
        return made

    def _enter(
        self, eqn: Any, given: list[int], stack: tuple[Any, ...]
    ) -> list[int] | None:
        """The outputs of an equation that has jaxprs of its own; None if it has none.

        How many of the operands are constants and how many the carry is told by the
        jaxprs inside: the names that JAX has for these numbers are not the same in all
        releases.
        """
        params = eqn.params
        add: Callable[[Any, Sequence[int]], list[int]] = lambda jaxpr, inputs: self._add(
            jaxpr, inputs, stack
        )
        outputs = [self._new(var.aval) for var in eqn.outvars]
        if eqn.primitive.name == "cond":
            for branch in params["branches"]:
                self._join(outputs, add(_inside(branch), given[1:]))
        elif eqn.primitive.name == "while":
            body = _inside(params["body_jaxpr"])
            consts = len(given) - len(body.invars)  # those of the condition
            start = len(given) - len(outputs)
            carry = [self._new(self.avals[value], [value]) for value in given[start:]]
            self._join(carry, add(body, given[consts:start] + carry))
            self._join(outputs, carry)
        elif eqn.primitive.name == "scan":
            body = _inside(params["jaxpr"])
            # Inside, the scanned arrays have an axis less, and the carry comes round again.
            scanned = _scanned(eqn.invars, body.invars)
            count = len(outputs) - _scanned(eqn.outvars, body.outvars)
            consts = len(given) - scanned - count
            entered = [
                self._new(var.aval, [value])
                for var, value in zip(body.invars[consts:], given[consts:])
            ]
            made = add(body, given[:consts] + entered)
            self._join(entered[:count], made[:count])
            self._join(outputs, entered[:count] + made[count:])
        else:
            for jaxpr in _jaxprs(params):
                if (len(jaxpr.invars), len(jaxpr.outvars)) == (len(given), len(outputs)):
                    self._join(outputs, add(jaxpr, given))
                    break
            else:
                return None
        return outputs

    def _join(self, values: Sequence[int], others: Sequence[int]) -> None:
        for value, other in zip(values, others):
            self.same.setdefault(value, []).append(other)


def _inside(jaxpr: Jaxpr) -> Any:
    """A jaxpr, whether closed or not."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def _scanned(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """How many variables, which stand last, have an axis more outside of a scan."""
    axes = lambda var: len(getattr(var.aval, "shape", ()))
    return sum(axes(outer) > axes(inner) for outer, inner in zip(outside, inside))


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    for name, param in params.items():
        jaxpr = _inside(param)
        if hasattr(jaxpr, "eqns") and name != "update_jaxpr":
            yield jaxpr
