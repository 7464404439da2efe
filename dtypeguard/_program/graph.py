"""A jaxpr and all jaxprs inside it as one graph of values, to be walked backwards."""

import functools
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax

from .._leaves.internals import ForeignNames
from .._leaves.types import Aval, Equation as JaxEquation, Jaxpr, Leaf

# The equations that a graph has before the calls of a jaxpr share theirs, and as a multiple
# of the program's own: functions that call each other twice, level by level, would make one
# that grows exponentially, and take longer than JAX takes to trace the program.
_MOST, _MOST_TIMES = 1_000, 4

# The result of these is their operand, in another shape or place.
SHAPES = ForeignNames(
    "broadcast_in_dim reshape squeeze transpose slice rev copy stop_gradient "
    "optimization_barrier sharding_constraint device_put "
    "reshard@jax>=0.7"
)
# Products and convolutions promote operands of different dtypes by themselves.
PRODUCTS = ForeignNames(
    "dot_general conv_general_dilated ragged_dot@jax>=0.4.31,<0.6 "
    "ragged_dot_general@jax>=0.6.2"
)

Variable = Any  # of a jaxpr: a variable or a literal
Stack = tuple[JaxEquation, ...]


class Equation(NamedTuple):
    """An equation of a jaxpr that computes something itself.

    Its `stack` is JAX's equation, then those whose jaxprs contain it, inside out.
    """

    primitive: str
    inputs: tuple[int, ...]
    stack: Stack


class Graph:
    """The values of a jaxpr, numbered, with calls and loops resolved.

    A value that crosses the boundary of a `jit`, a loop or a branch has another number on
    the other side, and an entry in `same`. Each call of a jitted function has values of its
    own, so that a walk leaves it where it came in. The `inputs` come first.
    """

    def __init__(self, jaxpr: Jaxpr, arguments: int | None = None):
        self.avals: list[Aval] = []
        # Inputs, constants and values that cross a boundary have no equation.
        self.made_by: dict[int, Equation] = {}
        self.same: dict[int, list[int]] = {}  # the values that one may be
        # Literals and closed-over values, with the stack of the first equation that uses
        # them, and their values as far as the jaxpr holds these.
        self.constants: dict[int, Stack] = {}
        self.values: dict[int, Leaf] = {}
        # Those that a function inside returns, with its jaxpr: no equation has their line.
        self.returned_by: dict[int, Jaxpr] = {}
        self.variables: dict[int, Variable] = {}  # of constants and inputs
        self.regions: dict[Any, Any] = {}  # kept for `blame`
        self._left = max(_MOST, _MOST_TIMES * count_equations(jaxpr, set()))
        self._shared = {}
        held = getattr(jaxpr, "consts", ())
        jaxpr = open_jaxpr(jaxpr)
        self._held = dict(zip(getattr(jaxpr, "constvars", ()), held))
        # JAX puts what a function closes over first: only the last inputs are arguments.
        first = 0 if arguments is None else max(len(jaxpr.invars) - arguments, 0)
        variables = jaxpr.invars[first:]
        self.inputs = [self._new(variable.aval) for variable in variables]
        self.variables |= zip(self.inputs, variables)
        try:
            self.outputs = self._add(jaxpr, dict(zip(variables, self.inputs)), ())
        except Exception:  # an audit without its lines is better than none
            self.outputs = self._opaque("jaxpr", self.inputs, jaxpr.outvars, ())

    def dependencies(self, value: int) -> int:
        """The inputs that a value depends on, as the bits of an integer."""
        return self._dependencies.get(value, 0)

    @functools.cached_property
    def _dependencies(self) -> dict[int, int]:
        found, changed = {value: 1 << value for value in self.inputs}, True
        order = self._sources_first()
        while changed:  # a second pass only where a loop feeds values back
            changed = False
            for value in order:
                equation, before = self.made_by.get(value), found.get(value, 0)
                bits = before
                for source in equation.inputs if equation else self.same.get(value, ()):
                    bits |= found.get(source, 0)
                if bits != before:
                    found[value], changed = bits, True
        return found

    def _sources_first(self) -> list[int]:
        """All values, each after those that it is made of, but for what a loop feeds back.

        The results of a call have lower numbers than what is inside of it.
        """
        place = list(range(len(self.avals)))
        for value in reversed(range(len(place))):
            same = self.same.get(value, ())
            if same and all(other > value for other in same):
                place[value] = max(place[other] for other in same)
        return sorted(range(len(place)), key=lambda value: (place[value], -value))

    def _new(self, aval: Aval, same: Sequence[int] = ()) -> int:
        self.avals.append(aval)
        value = len(self.avals) - 1
        if same:
            self.same[value] = list(same)
        return value

    def _add(self, jaxpr: Jaxpr, known: dict[Variable, int], outer: Stack) -> list[int]:
        """Adds the equations of a jaxpr whose inputs are known; returns its outputs."""

        def read(variable: Variable, *user: JaxEquation) -> int:
            is_literal = hasattr(variable, "val")
            if not is_literal and variable in known:
                return known[variable]
            value = self._new(variable.aval)
            self.constants[value], self.variables[value] = (*user, *outer), variable
            if outer and not user:
                self.returned_by[value] = jaxpr
            if is_literal or variable in self._held:
                self.values[value] = variable.val if is_literal else self._held[variable]
            if not is_literal:
                known[variable] = value
            return value

        self._left -= len(jaxpr.eqns)
        for eqn in jaxpr.eqns:
            operands = [read(variable, eqn) for variable in eqn.invars]
            stack = (eqn, *outer)
            try:
                made = self._enter(eqn, operands, stack)
            except Exception:  # the parameters differ in this release of JAX
                made = None
            if made is None:
                made = self._opaque(eqn.primitive.name, operands, eqn.outvars, stack)
            known |= zip(eqn.outvars, made)
        return [read(variable) for variable in jaxpr.outvars]

    def _opaque(
        self, name: str, operands: Sequence[int], results: Sequence[Variable], stack: Stack
    ) -> list[int]:
        """The outputs of an equation whose inside stays closed."""
        equation = Equation(name, tuple(operands), stack)
        made = [self._new(variable.aval) for variable in results]
        self.made_by |= dict.fromkeys(made, equation)
        return made

    def _enter(
        self, eqn: JaxEquation, operands: list[int], stack: Stack
    ) -> list[int] | None:
        """The outputs of an equation that contains jaxprs; None if it contains none."""
        params = eqn.params
        add: Callable[..., list[int]] = lambda jaxpr, inputs, stack=stack: self._add(
            jaxpr, dict(zip(jaxpr.invars, inputs)), stack
        )
        outputs = [self._new(variable.aval) for variable in eqn.outvars]
        if eqn.primitive.name == "cond":
            for branch in params["branches"]:
                self._join(outputs, add(open_jaxpr(branch), operands[1:]))
        elif eqn.primitive.name in ("scan", "while"):
            closed, start, consts, count = loop_parts(eqn)
            body, operands = open_jaxpr(closed), operands[start:]
            # The body sees slices of the scanned arrays, and the carry comes round again.
            entered = [
                self._new(variable.aval, [value])
                for variable, value in zip(body.invars[consts:], operands[consts:])
            ]
            made = add(body, operands[:consts] + entered)
            self._join(entered[:count], made[:count])
            self._join(outputs, entered[:count] + made[count:])
        else:
            ends = len(operands), len(outputs)
            for jaxpr in map(open_jaxpr, (*params.values(), expanded(eqn))):
                is_jaxpr = hasattr(jaxpr, "eqns")
                if is_jaxpr and ends == (len(jaxpr.invars), len(jaxpr.outvars)):
                    made = add if self._left > 0 else self._share
                    self._join(outputs, made(jaxpr, operands, stack))
                    break
            else:
                return None
        return outputs

    def _share(self, jaxpr: Jaxpr, operands: list[int], stack: Stack) -> list[int]:
        """The outputs of a call, whose inside is that of all calls of this jaxpr."""
        if id(jaxpr) in self._shared:
            entered, made, _ = self._shared[id(jaxpr)]
            self._join(entered, operands)
            return made
        pairs = zip(jaxpr.invars, operands)
        entered = [self._new(variable.aval, [value]) for variable, value in pairs]
        made = self._add(jaxpr, dict(zip(jaxpr.invars, entered)), stack)
        self._shared[id(jaxpr)] = entered, made, jaxpr  # which keeps its id
        return made

    def _join(self, values: Sequence[int], others: Sequence[int]) -> None:
        for value, other in zip(values, others):
            self.same.setdefault(value, []).append(other)


def open_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """The open jaxpr of a closed one."""
    return getattr(jaxpr, "jaxpr", jaxpr)


class LoopParts(NamedTuple):
    """The body of a `scan` or `while`, and the number of operands in each group."""

    body: Jaxpr  # closed
    of_condition: int  # constants of the condition
    consts: int  # constants of the body
    carried: int  # the rest is scanned


def loop_parts(eqn: JaxEquation) -> LoopParts:
    """How the operands of a loop are grouped, by shapes: JAX's own parameters change."""
    body = eqn.params["jaxpr" if "jaxpr" in eqn.params else "body_jaxpr"]
    inside = open_jaxpr(body)
    of_condition = len(eqn.invars) - len(inside.invars)
    scanned = _scanned(eqn.invars[of_condition:], inside.invars)
    carried = len(eqn.outvars) - _scanned(eqn.outvars, inside.outvars)
    return LoopParts(body, of_condition, len(inside.invars) - scanned - carried, carried)


def manual_axes(eqn: JaxEquation) -> Collection[str]:
    """The axes of the mesh of a `shard_map` over which it splits its operands."""
    params = eqn.params  # of other names from JAX 0.10 on
    return params["newly_manual_axes" if "newly_manual_axes" in params else "manual_axes"]


def _scanned(outside: Sequence[Variable], inside: Sequence[Variable]) -> int:
    """How many variables, the last ones, have one more axis outside a scan than inside."""
    axes = lambda variable: len(getattr(variable.aval, "shape", ()))
    return sum(axes(outer) > axes(inner) for outer, inner in zip(outside, inside))


def jaxprs_in(params: object) -> list[Jaxpr]:
    """The jaxprs among the parameters of an equation, also in tuples."""
    if hasattr(open_jaxpr(params), "eqns"):
        return [params]
    if isinstance(params, dict):
        params = list(params.values())
    values = params if isinstance(params, (tuple, list)) else ()
    return [jaxpr for value in values for jaxpr in jaxprs_in(value)]


def count_equations(jaxpr: Jaxpr, counted: set[int]) -> int:
    """Returns the number of equations, those of a jaxpr that is called often once.

    Args:
        jaxpr: with all jaxprs inside it.
        counted: the identities of jaxprs that are left out, to which it adds.
    """
    jaxpr = open_jaxpr(jaxpr)
    if id(jaxpr) in counted:
        return 0
    counted.add(id(jaxpr))
    inside = [each for eqn in jaxpr.eqns for each in jaxprs_in(eqn.params)]
    return len(jaxpr.eqns) + sum(count_equations(each, counted) for each in inside)


# By the identity of the object: equal ones may have operands of other types. An equation
# has one jaxpr, whoever asks: others know its equations by it.
_EXPANDED: dict[int, Jaxpr] = {}


def expanded(eqn: JaxEquation) -> Jaxpr | None:
    """What an equation holds that JAX expands when it compiles, such as `custom_root`.

    On JAX 0.12 such an equation holds no jaxpr, but an object that makes one.
    """
    made: Any = eqn.params.get("_prim")
    if not hasattr(made, "expand"):
        return None
    if id(made) not in _EXPANDED:

        def run(*operands):
            results = made.expand(*jax.tree_util.tree_unflatten(made.in_tree, operands))
            return jax.tree_util.tree_leaves(results)

        try:
            jaxpr = jax.make_jaxpr(run)(*(var.aval for var in eqn.invars))
            weakref.finalize(made, _EXPANDED.pop, id(made), None)
        except Exception:  # another release has other objects
            return None
        _EXPANDED[id(made)] = jaxpr
    return _EXPANDED[id(made)]
