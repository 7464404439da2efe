"""The equations of a program where they stand, how each is run, and the way through."""

import collections
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from .._leaves.dtypes import kind
from .._leaves.types import Equation, Jaxpr, Leaf
from .._program.jaxprs import Stack, expanded, jaxprs_in, open_jaxpr
from .._rounding.rounding import round_with
from .._tracebacks.written import Written
from . import primitives
from .formats import Formats
from .primitives import is_inexact

# How an equation is run: by the names of primitives in `control.py`, or as one of these.
COMPUTED, OWN, SAMPLE, CALL = "computed", "own", "sample", "call"
SOLVE, STOCHASTIC = "custom_linear_solve", "stochastic"
CONTROL = frozenset(["scan", "while", "cond", "reduce_precision"])
if hasattr(jax, "shard_map"):  # from JAX 0.7 on
    CONTROL |= {"shard_map"}

# What a run notes, by the number of the equation, or by that and what it is of its results;
# of a loop, with an axis for its turns.
Noted = dict[Any, Leaf]
# How, and the jaxprs that are run in its place.
Rule = tuple[str, Sequence[Jaxpr]]


class Node:
    """An equation where it stands in a program: a function called twice has two of each.

    Attributes:
        stack: it and those around it, inside out.
        rule: how it is run.
        line: the number of its line; None if nothing rounds there.
        inner: the programs inside of it that are run in its place.
        meant: the constants among its operands as they were meant, by operand.
        constant: the Python number that it rounds, if it is the conversion of one.
        constants: what was rounded of both: of an array the number that changed most.
        doubtful: its constants of 16 bits that may have been rounded before the trace.
        ends: the operands that are cast to the dtype that they have, where width ends.
        follows: of a conversion, whether its target follows the dtypes of the arguments;
            None if it is not known.
        asks_for_result: of a product, whether it asks for the dtype of its result.
        last: the variables that nothing after it uses.
    """

    def __init__(self, eqn: Equation, stack: Stack, rule: str, inner: "Sequence[Block]"):
        self.eqn, self.stack, self.rule, self.inner = eqn, stack, rule, inner
        self.name: str = eqn.primitive.name
        self.number = -1
        self.line: int | None = None
        self.rounds = False
        self.meant: dict[int, np.ndarray] = {}
        self.constant: float | None = None
        self.constants: list[float] = []
        self.doubtful: list[np.ndarray] = []
        self.ends: frozenset[int] = frozenset()
        self.follows: bool | None = None
        self.asks_for_result = False
        self.last: list[Any] = []

    # Plans ask for these again and again.

    @functools.cached_property
    def is_backward(self) -> bool:
        return Written(self.stack).is_backward

    @functools.cached_property
    def is_of_ours(self) -> bool:
        return Written(self.stack).cast_of_ours is not None

    @functools.cached_property
    def is_asked(self) -> bool:
        return self.follows is not True and Written(self.stack).is_explicit


class Block:
    """A jaxpr where it stands in a program.

    Attributes:
        number: its place in the order of the program, after all inside of it.
        first: the number of the first node inside of it.
        inputs: its variables, those of the arrays that it holds first.
        nodes: its equations that something depends on.
        meant: the constants among the outputs as they were meant, by output.
        ends: the outputs that are cast to the dtype that they have.
    """

    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr, self.consts = jaxpr, [*getattr(jaxpr, "consts", ())]
        opened = open_jaxpr(jaxpr)
        self.inputs = [*opened.constvars, *opened.invars]
        self.outputs = [*opened.outvars]
        self.nodes: list[Node] = []
        self.meant: dict[int, np.ndarray] = {}
        self.ends: frozenset[int] = frozenset()
        self.first = self.number = -1

    @functools.cached_property
    def constants(self) -> dict[Any, Leaf]:
        """The arrays that it holds, by their variables."""
        return dict(zip(self.inputs, self.consts))

    @functools.cached_property
    def uses(self) -> collections.Counter[Any]:
        """How often each of its variables is used."""
        used = [var for node in self.nodes for var in node.eqn.invars]
        return collections.Counter(
            v for v in (*used, *self.outputs) if not hasattr(v, "val")
        )

    def all_nodes(self) -> Iterator[Node]:
        """Its nodes and those inside of them, in the order of the program."""
        for node in self.nodes:
            for block in node.inner:
                yield from block.all_nodes()
            yield node


def rule_of(eqn: Equation, stack: Stack, is_fixed: bool, formats: Formats) -> Rule:
    """How an equation is run."""
    if has_reference(eqn):
        return OWN, ()
    if is_fixed and formats.products is None and Written(stack).is_of_sampler:
        return SAMPLE, ()
    if (found := _with_others_inside(eqn)) is not None:
        return found
    has_keys = any(primitives.is_key(var.aval) for var in eqn.invars)
    is_own = eqn.primitive.name in primitives.OF_BITS | primitives.DEBUG
    is_own = is_own or has_keys or _is_opaque(eqn)
    return (OWN if is_own else COMPUTED), ()


def has_reference(eqn: Equation) -> bool:
    """Whether an equation takes or gives a mutable reference."""
    return any(hasattr(var.aval, "inner_aval") for var in (*eqn.invars, *eqn.outvars))


def _with_others_inside(eqn: Equation) -> Rule | None:
    """How an equation is run that has others inside, which are run in its place."""
    name, jaxprs = eqn.primitive.name, jaxprs_in(eqn.params)
    if name == "while":
        return name, [eqn.params["body_jaxpr"], eqn.params["cond_jaxpr"]]
    if name in CONTROL:
        return name, jaxprs
    if name == SOLVE:
        return name, [eqn.params["jaxprs"].solve]
    if (inside := expanded(eqn)) is not None:
        return CALL, [inside]
    if eqn.params.get("name") == round_with.__name__:  # pyright: ignore[reportAttributeAccessIssue]: as of any function
        return STOCHASTIC, ()
    if name in primitives.CALLS and len(jaxprs) == 1:
        return CALL, jaxprs
    return None


def _is_opaque(eqn: Equation) -> bool:
    name = eqn.primitive.name
    has_others = bool(jaxprs_in(eqn.params)) and name not in primitives.COMBINES
    return name in primitives.AS_WRITTEN or has_others


def has_no_wide_form(eqn: Equation) -> bool:
    """Whether an equation that is run as it stands computes with floating values."""
    has_keys = any(primitives.is_key(var.aval) for var in eqn.invars)
    is_drawn = has_keys and any(is_inexact(var.aval) for var in eqn.outvars)
    takes_bits = eqn.primitive.name in primitives.OF_BITS
    takes_floats = takes_bits and any(is_inexact(var.aval) for var in eqn.invars)
    return _is_opaque(eqn) or is_drawn or takes_floats


def live(nodes: Sequence[Node], outputs: Sequence[Any]) -> list[Node]:
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


def scalars_of(
    eqn: Equation, meant: dict[int, np.ndarray], numbers: dict[Any, float]
) -> dict[int, float]:
    """The operands that are Python numbers, by their place."""
    found = {}
    for place, var in enumerate(eqn.invars):
        if not hasattr(var, "val"):
            if var in numbers:
                found[place] = numbers[var]
        elif kind(getattr(var.aval, "dtype", None)) == "float" and not np.ndim(var.val):
            found[place] = float(np.asarray(meant.get(place, var.val)))
    return found


class Interpreter:
    """Runs the blocks of a program.

    What runs them here measures: eager, with probes. What runs them traced, equation by
    equation as it stands, is `autocast`.

    Attributes:
        rules: by the rule of a node, what computes it.
    """

    rules: ClassVar[dict[str, Callable[..., Sequence[Any]]]]

    def entered_block(self, block: Block, given: Sequence[Any]) -> list[Any]:
        """The values of the constants and the inputs of a block."""
        return [*block.consts, *given]

    def literal(self, var: Leaf) -> Any:
        """The value of a number that stands in an equation."""
        return var.val if hasattr(var.val, "dtype") else np.asarray(var.val, var.aval.dtype)

    def constant_as_meant(
        self, block: Block, user: Node | Block, var: Leaf, meant: np.ndarray
    ) -> Any:
        """The value of a constant that was meant as another one, where it is used."""
        raise NotImplementedError

    def context(self, eqn: Equation) -> contextlib.AbstractContextManager[object]:
        """What an equation is computed under."""
        raise NotImplementedError

    def kept(
        self, block: Block, node: Node, values: Sequence[Any], made: Sequence[Any]
    ) -> Sequence[Any]:
        """The results of an equation as they are kept until they are used."""
        return made

    def block(self, block: Block, given: Sequence[Any]) -> list[Any]:
        """The results of a block."""
        known = dict(zip(block.inputs, self.entered_block(block, given)))

        def read(user: Node | Block, place: int, var: Any) -> Any:
            meant = user.meant.get(place)
            if meant is not None:
                return self.constant_as_meant(block, user, var, meant)
            return self.literal(var) if hasattr(var, "val") else known[var]

        for node in block.nodes:
            with self.context(node.eqn):
                values = [read(node, n, v) for n, v in enumerate(node.eqn.invars)]
                made = self.rules[node.rule](self, node, values)
                made = self.kept(block, node, values, made)
                known |= zip(node.eqn.outvars, made)
            for var in node.last:
                known.pop(var, None)
        return [read(block, n, v) for n, v in enumerate(block.outputs)]
