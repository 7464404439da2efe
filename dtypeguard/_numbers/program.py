"""A traced program as blocks of nodes: one record of each equation, where it stands."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._leaves.dtypes import bits, kind
from .._leaves.types import Aval, DType, Equation, Jaxpr, Leaf
from .._lines.equations import calls_of, is_backward, is_of_sampler, origin_of
from .._program.expand import expanded
from .._program.graph import Stack, jaxprs_in, loop_parts, open_jaxpr
from .._rounding.rounding import round_with
from . import primitives
from .formats import Formats
from .lines import Lines
from .primitives import is_inexact
from .python_numbers import PythonNumbers, held

# How an equation is run: by the names of the rules in `rules.py`, or as one of these.
COMPUTED, OWN, SAMPLE, CALL, SKIPPED = "computed", "own", "sample", "call", "skipped"
_HAS_SHARDS = hasattr(jax, "shard_map")  # from JAX 0.7 on
_CONTROL = frozenset(["scan", "while", "cond", "shard_map", "reduce_precision"])


class Node:
    """An equation where it stands in a program: a function called twice has two of each.

    Attributes:
        eqn: the equation.
        stack: it and those around it, inside out.
        rule: how it is run.
        number: its place in the order of the program.
        line: the number of its line; None if nothing rounds there.
        rounds: whether it rounds itself.
        inner: the programs inside of it that are run in its place.
        meant: the Python numbers that its literals stand for, by operand.
        combined: those of the literals in how it combines two numbers, by identity.
        constant: the Python number that it rounds, if it is the conversion of one.
        is_backward: whether it belongs to the backward pass of a gradient.
        last: the variables that nothing after it uses.
    """

    def __init__(self, eqn: Equation, stack: Stack, rule: str, inner: "Sequence[Block]"):
        self.eqn, self.stack, self.rule, self.inner = eqn, stack, rule, inner
        self.name: str = eqn.primitive.name
        self.number = -1
        self.line: int | None = None
        self.rounds = False
        self.meant: dict[int, float] = {}
        self.combined: dict[int, float] = {}
        self.constant: float | None = None
        self.is_backward = is_backward(stack)
        self.last: list[Any] = []


class Block:
    """A jaxpr where it stands in a program.

    Attributes:
        number: its place in the order of the program, after all inside of it.
        first: the number of the first node inside of it.
        consts: the arrays that it holds.
        inputs: its variables, the constants first.
        outputs: what it returns: variables and literals.
        nodes: its equations that something depends on.
        meant: the Python numbers that literals among the outputs stand for.
    """

    def __init__(self, jaxpr: Jaxpr):
        self.consts = [*getattr(jaxpr, "consts", ())]
        opened = open_jaxpr(jaxpr)
        self.inputs = [*opened.constvars, *opened.invars]
        self.outputs = [*opened.outvars]
        self.nodes: list[Node] = []
        self.meant: dict[int, float] = {}
        self.first = self.number = -1

    def all_nodes(self) -> Iterator[Node]:
        """Its nodes and those inside of them, in the order of the program."""
        for node in self.nodes:
            for block in node.inner:
                yield from block.all_nodes()
            yield node


class Program:
    """A traced program, of which each equation has a number.

    Attributes:
        jaxpr: closed.
        block: the same as nodes.
        formats: its dtypes.
        lines: those at which it rounds.
        constants: the lines and the Python numbers that are rounded there.
        size: how many numbers there are.
        unknown: the primitives that run as written, since they have no wide form.
        backward: the narrow dtypes that a backward pass has.
        compiled: its loops, by their plans.
        literals: the numbers in its equations, as values.

    Args:
        jaxpr: a closed jaxpr.
        formats: its dtypes.
        numbers: the Python numbers that were given to JAX when it was traced.
    """

    def __init__(self, jaxpr: Jaxpr, formats: Formats, numbers: PythonNumbers):
        self.jaxpr, self.formats = jaxpr, formats
        self.lines, self.unknown = Lines(), set[str]()
        self.constants: list[tuple[int, float]] = []
        self.backward = set[np.dtype]()
        self.compiled, self.literals = dict[object, Any](), dict[object, Any]()
        self._numbers = numbers
        if formats.narrow is not None:
            self._note_inputs()
        numbers.start_again()
        is_fixed = [not formats.narrow or not self._is_rounded(x) for x in jaxpr.in_avals]
        self.block, _ = self._enter(jaxpr, (), is_fixed, {})
        self.size = self._count(self.block, 0)
        for node in self.block.all_nodes():
            self._note(node)
        for node in self.block.all_nodes():
            if node.line is None:
                node.line = self.lines.find(node.stack)

    # Building

    def _enter(
        self, jaxpr: Jaxpr, outer: Stack, fixed: Sequence[bool], scalars: dict[int, float]
    ) -> tuple[Block, list[bool]]:
        """A block, and which of its results no line rounds.

        Args:
            jaxpr: closed or open.
            outer: the equations around it.
            fixed: which of its arguments no line rounds.
            scalars: the arguments that are Python numbers, by their place.
        """
        block = Block(jaxpr)
        consts = len(block.inputs) - len(fixed)
        known = dict(zip(block.inputs, [*[True] * consts, *fixed]))
        numbers = {block.inputs[consts + n]: x for n, x in scalars.items()}
        nodes = []
        for eqn in open_jaxpr(jaxpr).eqns:
            self._numbers.next_equation()
            node, made = self._node(eqn, (eqn, *outer), known, numbers)
            known |= zip(eqn.outvars, made)
            nodes.append(node)
        block.meant = self._meant(block.outputs, outer)
        block.nodes = _live(nodes, block.outputs)
        return block, [hasattr(v, "val") or known[v] for v in block.outputs]

    def _node(
        self,
        eqn: Equation,
        stack: Stack,
        known: dict[Any, bool],
        numbers: dict[Any, float],
    ) -> tuple[Node, Sequence[bool]]:
        """The record of an equation, and which of its results no line rounds."""
        if any(hasattr(var.aval, "inner_aval") for var in (*eqn.invars, *eqn.outvars)):
            raise TypeError(
                "audit_precision does not run programs with mutable references "
                f"({eqn.primitive.name}): give it a function that returns new arrays."
            )
        meant = self._meant(eqn.invars, stack)
        is_fixed = [
            hasattr(var, "val") or known[var] or not is_inexact(var.aval)
            for var in eqn.invars
        ]
        scalars = _scalars(eqn, meant, numbers)
        rule, jaxprs = self._rule(eqn, stack, all(is_fixed))
        inner, made = self._inside(eqn, stack, rule, jaxprs, is_fixed, scalars)
        node = Node(eqn, stack, rule, inner)
        node.meant, node.combined = meant, self._combined(stack)
        if rule == COMPUTED:
            made = [all(is_fixed) and self._is_exact(eqn)] * len(eqn.outvars)
            if eqn.primitive.name == "convert_element_type" and 0 in scalars:
                dtype = self.formats.written(eqn.outvars[0].aval.dtype)
                if kind(dtype) == "float" and held(scalars[0], dtype) != scalars[0]:
                    node.constant = scalars[0]
        return node, made or [rule == SAMPLE] * len(eqn.outvars)

    def _rule(
        self, eqn: Equation, stack: Stack, is_fixed: bool
    ) -> tuple[str, Sequence[Jaxpr]]:
        """How an equation is run, and the jaxprs that are run in its place."""
        name, jaxprs = eqn.primitive.name, jaxprs_in(eqn.params)
        if name == "shard_map" and not _HAS_SHARDS:
            self.unknown.add(name)
            return OWN, ()
        if is_fixed and self.formats.products is None and is_of_sampler(stack):
            return SAMPLE, ()
        if name in _CONTROL:
            return name, _parts(eqn)
        if name == "custom_linear_solve":
            return name, [eqn.params["jaxprs"].solve]
        if (inside := expanded(eqn)) is not None:
            return CALL, [inside]
        if eqn.params.get("name") == round_with.__name__:  # pyright: ignore[reportAttributeAccessIssue]: as of any function
            return "stochastic", ()
        if name in primitives.CALLS and len(jaxprs) == 1:
            return CALL, jaxprs
        if name in primitives.DEBUG:
            return SKIPPED, ()
        is_opaque = name in primitives.AS_WRITTEN or (
            jaxprs and name not in primitives.COMBINES
        )
        has_keys = any(primitives.is_key(var.aval) for var in eqn.invars)
        if is_opaque or has_keys or name in primitives.OF_BITS:
            has_wide = any(is_inexact(var.aval) for var in eqn.invars)
            is_drawn = has_keys and any(is_inexact(var.aval) for var in eqn.outvars)
            if is_opaque or is_drawn or (name in primitives.OF_BITS and has_wide):
                self.unknown.add(name)
            return OWN, ()
        return COMPUTED, ()

    def _inside(
        self,
        eqn: Equation,
        stack: Stack,
        rule: str,
        jaxprs: Sequence[Jaxpr],
        fixed: Sequence[bool],
        scalars: dict[int, float],
    ) -> tuple[list[Block], list[bool]]:
        """The blocks inside of an equation, and which of its results no line rounds."""
        if not jaxprs:
            return [], []
        none = [False] * len(eqn.outvars)
        if rule == "cond":
            made = [self._enter(each, stack, fixed[1:], {})[0] for each in jaxprs]
            return made, none
        if rule in ("scan", "while"):
            _, before, consts, carried = loop_parts(eqn)
            inside = [*fixed[before : before + consts], *[False] * carried]
            inside += fixed[before + consts + carried :]
            numbers = {n - before: x for n, x in scalars.items() if n - before < consts}
            numbers = {n: x for n, x in numbers.items() if n >= 0}
            body, made = self._enter(jaxprs[0], stack, inside, numbers)
            blocks = [body]
            if rule == "while":
                given = [*fixed[:before], *[False] * carried]
                blocks.append(self._enter(jaxprs[1], stack, given, {})[0])
            return blocks, [*none[:carried], *made[carried:]]
        if rule == "custom_linear_solve":
            first = sum(size or 0 for size in [*eqn.params["const_lengths"]][:2])
            last = first + eqn.params["const_lengths"].solve
            skipped = sum(size or 0 for size in eqn.params["const_lengths"])
            fixed = [*fixed[first:last], *fixed[skipped:]]
            block, _ = self._enter(jaxprs[0], stack, fixed, {})
            return [block], none
        scalars = {} if rule == "shard_map" else scalars
        block, made = self._enter(jaxprs[0], stack, fixed, scalars)
        return [block], made

    def _meant(self, variables: Sequence[Any], stack: Stack) -> dict[int, float]:
        """The Python numbers that the literals among some variables stand for."""
        found = {}
        for place, var in enumerate(variables):
            if hasattr(var, "val"):
                number = self._number(var, stack)
                if number is not None:
                    found[place] = number
        return found

    def _number(self, var: Leaf, stack: Stack) -> float | None:
        """The Python number that a scalar stands for; None if it is it."""
        dtype = var.aval.dtype
        if kind(dtype) != "float" or np.ndim(var.val):
            return None
        origin = origin_of(stack)
        if origin is None:
            return None
        return self._numbers.next_number(origin, calls_of(stack), var.val, dtype)

    def _combined(self, stack: Stack) -> dict[int, float]:
        """The numbers in how an equation combines two."""
        found = {}
        if stack[0].primitive.name in primitives.COMBINES:
            for jaxpr in jaxprs_in(stack[0].params):
                for eqn in open_jaxpr(jaxpr).eqns:
                    self._numbers.next_equation()
                    for var in eqn.invars:
                        if hasattr(var, "val"):
                            number = self._number(var, (eqn, *stack))
                            if number is not None:
                                found[id(var)] = number
        return found

    # Numbering

    def _count(self, block: Block, number: int) -> int:
        """Numbers a block and all inside of it; the next number."""
        block.first = number
        for node in block.nodes:
            for inner in node.inner:
                number = self._count(inner, number)
            node.number = number
            number += 1
        block.number = number
        return number + 1

    def _note_inputs(self) -> None:
        """The first line stands for the inputs that are rounded."""
        line = self.lines[self.lines.number_of(())]
        for aval in self.jaxpr.in_avals:
            if self._is_rounded(aval):
                line.dtypes.add(str(self.formats.written(aval.dtype)))

    def _is_rounded(self, aval: Aval) -> bool:
        """Whether an input is rounded where all is run in a narrow dtype."""
        dtype = getattr(aval, "dtype", None)
        return is_inexact(aval) and self.formats.written(dtype) != dtype

    def _note(self, node: Node) -> None:
        """Notes the line of an equation that rounds, and the numbers that it rounds."""
        formats, products = self.formats, self.formats.products
        written = [formats.written(v.aval.dtype) for v in node.eqn.outvars if _has(v)]
        if node.is_backward:
            self.backward.update(x for x in written if 0 < bits(x) < 32)
        for place, meant in node.meant.items():
            self._note_number(node, meant, node.eqn.invars[place].aval.dtype)
        if node.constant is not None:
            self._note_number(node, node.constant, node.eqn.outvars[0].aval.dtype)
        if node.rule in ("stochastic", "reduce_precision"):
            node.rounds = not formats.is_own and any(map(formats.rounds, written))
        elif node.rule == COMPUTED and products is not None:
            node.rounds = products.rounds(node.eqn)
        elif node.rule == COMPUTED:
            node.rounds = self._rounds(node.eqn)
        if not node.rounds:
            return
        node.line = self.lines.number_of(node.stack)
        line = self.lines[node.line]
        if products is not None:
            algorithm = products.algorithm(node.eqn, False)
            assert algorithm is not None
            line.note(node.stack, str(algorithm.dtype))
            line.products.append(node.stack)
            return
        for dtype in written:
            if kind(dtype) in ("float", "complex"):
                line.note(node.stack, str(dtype))

    def _note_number(self, node: Node, meant: float, dtype: DType) -> None:
        dtype = self.formats.written(dtype)
        if not self.formats.rounds(dtype):
            return
        number = self.lines.number_of(node.stack)
        line = self.lines[number]
        line.dtypes.add(str(dtype))
        line.constants[meant] = held(meant, dtype)
        if (number, meant) not in self.constants:
            self.constants.append((number, meant))
        node.line = number

    def _rounds(self, eqn: Equation) -> bool:
        """Whether an equation rounds as written, where it has a wide form."""
        operands, made = ([self._typed(v) for v in x] for x in (eqn.invars, eqn.outvars))
        if not any(is_inexact(x) for x in made) or primitives.moves(eqn, operands, made):
            return False
        dtypes = [x.dtype for x in (*made, *operands)]
        return any(self.formats.rounds(x) for x in dtypes)

    def _is_exact(self, eqn: Equation) -> bool:
        operands, made = ([self._typed(v) for v in x] for x in (eqn.invars, eqn.outvars))
        return primitives.is_exact(eqn, operands, made)

    def _typed(self, var: Any) -> Leaf:
        """A stand-in for a value as written."""
        return _Typed(self.formats.written(getattr(var.aval, "dtype", np.dtype(bool))))


class _Typed:
    """What has a dtype."""

    def __init__(self, dtype: DType):
        self.dtype = dtype


def _has(var: Any) -> bool:
    return hasattr(var.aval, "dtype")


def _scalars(
    eqn: Equation, meant: dict[int, float], numbers: dict[Any, float]
) -> dict[int, float]:
    """The operands that are Python numbers, by their place."""
    found = {}
    for place, var in enumerate(eqn.invars):
        if not hasattr(var, "val"):
            if var in numbers:
                found[place] = numbers[var]
        elif kind(getattr(var.aval, "dtype", None)) == "float" and not np.ndim(var.val):
            found[place] = meant.get(place, float(var.val))
    return found


def _parts(eqn: Equation) -> list[Jaxpr]:
    """The jaxprs of a loop, the body first, of branches or of shards."""
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        return [*params["branches"]]
    if name == "scan":
        return [loop_parts(eqn).body]
    if name == "while":
        return [loop_parts(eqn).body, params["cond_jaxpr"]]
    return [params["jaxpr"]] if name == "shard_map" else []


def _live(nodes: Sequence[Node], outputs: Sequence[Any]) -> list[Node]:
    """The nodes that something depends on, with what nothing uses after them."""
    used = {var for var in outputs if not hasattr(var, "val")}
    live = []
    for node in reversed(nodes):
        eqn = node.eqn
        if eqn.effects or not used.isdisjoint(eqn.outvars):
            operands = {var for var in eqn.invars if not hasattr(var, "val")}
            made = {var for var in eqn.outvars if var not in used}
            node.last = [*(operands - used), *made]
            used |= operands
            live.append(node)
    return live[::-1]


def as_array(value: Leaf) -> Leaf:
    return value if hasattr(value, "dtype") else jnp.asarray(value)
