"""A traced program as blocks of nodes: one record of each equation, where it stands."""

from typing import Any

import jax
import numpy as np

from .._leaves.dtypes import bits, kind
from .._leaves.types import Aval, DType, Equation, Jaxpr
from .._program.aligned import SecondTraces
from .._program.jaxprs import Stack, open_jaxpr
from .._source.origin import Origin
from .._tracebacks.written import Written
from . import primitives
from .constants import (
    doubtful_constants,
    ends_of_width,
    meant_constants,
    most_changed,
    number_in_dtype,
)
from .formats import Formats
from .lines import Lines
from .nodes import (
    CALL,
    COMPUTED,
    OWN,
    SAMPLE,
    STOCHASTIC,
    Block,
    Node,
    has_no_wide_form,
    has_reference,
    live,
    rule_of,
    scalars_of,
)
from .primitives import is_inexact


class NumericProgram:
    """A traced program, of which each equation has a number.

    Attributes:
        lines: those at which it rounds.
        size: how many numbers there are.
        unexamined: the primitives that run as written, since they have no wide form, each
            with its lines.
        backward: the narrow dtypes that a backward pass has.
        literals: the numbers in its equations, as values.
        functions: what evaluates equations, and the bodies of long loops.

    Args:
        jaxpr: a closed jaxpr.
        formats: its dtypes.
        traces: it beside other traces of the function, as far as there are any.
        is_measured: whether its lines, and what it rounds, are to be known. To emit it
            needs neither.
        is_judged: whether it is compared with a reference, which has the eps of its dtype.
    """

    def __init__(
        self,
        jaxpr: Jaxpr,
        formats: Formats,
        traces: SecondTraces,
        is_measured: bool = True,
        is_judged: bool = False,
    ):
        self.jaxpr, self.formats = jaxpr, formats
        self.lines = Lines()
        self.unexamined = dict[tuple[str, Origin | None], None]()
        self.backward = set[np.dtype]()
        self.literals, self.functions = dict[object, Any](), dict[object, Any]()
        self._is_measured, self._is_judged = is_measured, is_judged
        if formats.narrow is not None:  # the first line stands for the inputs
            line = self.lines[self.lines.number_of(())]
            dtypes = {x.dtype for x in jaxpr.in_avals if is_inexact(x)}
            line.dtypes |= {str(y) for x in dtypes if (y := formats.written(x)) != x}
        self.block = self._enter(jaxpr, (), formats.narrow is None, {}, traces)
        self.size = self._count(self.block, 0)
        if is_measured:
            for node in self.block.all_nodes():
                self._note(node)
            for node in self.block.all_nodes():
                if node.line is None:
                    node.line = self.lines.find(node.stack)

    def leave_out(self, stack: Stack) -> None:
        """Notes that an equation runs as written."""
        self.unexamined[stack[0].primitive.name, Written(stack).origin] = None

    # Building

    def _enter(
        self,
        jaxpr: Jaxpr,
        outer: Stack,
        is_fixed: bool,
        scalars: dict[int, float],
        traces: SecondTraces,
    ) -> Block:
        """A block.

        Args:
            jaxpr: closed or open.
            outer: the equations around it.
            is_fixed: whether no line rounds its arguments.
            scalars: the arguments that are Python numbers, by their place.
            traces: it beside its other traces.
        """
        block = Block(jaxpr)
        consts = len(block.consts)
        fixed = {*block.inputs} if is_fixed else {*block.inputs[:consts]}
        numbers = {block.inputs[consts + n]: x for n, x in scalars.items()}
        nodes = []
        for eqn in open_jaxpr(jaxpr).eqns:
            if self._is_measured and eqn.primitive.name in primitives.DEBUG:
                continue
            node = self._node(eqn, (eqn, *outer), fixed, numbers, traces)
            if node.rule == SAMPLE:
                fixed.update(eqn.outvars)
            nodes.append(node)
        if self._is_measured:
            block.meant = meant_constants(
                traces.wide, block.outputs, None, outer, self.formats, self._is_judged
            )
        block.ends = ends_of_width(traces.wide, block.outputs, None)
        block.nodes = live(nodes, block.outputs)
        return block

    def _node(
        self,
        eqn: Equation,
        stack: Stack,
        fixed: set[Any],
        numbers: dict[Any, float],
        traces: SecondTraces,
    ) -> Node:
        """The record of an equation."""
        if self._is_measured and has_reference(eqn):
            raise TypeError(
                "audit_precision does not run programs with mutable references "
                f"({eqn.primitive.name}): give it a function that returns new arrays."
            )
        meant: dict[int, np.ndarray] = {}
        if self._is_measured:
            meant = meant_constants(
                traces.wide, eqn.invars, eqn, stack, self.formats, self._is_judged
            )
        is_fixed = self._is_measured and all(
            hasattr(var, "val") or var in fixed or not is_inexact(var.aval)
            for var in eqn.invars
        )
        scalars = scalars_of(eqn, meant, numbers)
        rule, jaxprs = rule_of(eqn, stack, is_fixed, self.formats)
        if rule == OWN and has_no_wide_form(eqn):
            self.leave_out(stack)
        is_call = rule == CALL
        blocks: list[Block] = []
        for inner in jaxprs:
            inside = traces.of_inner(eqn, inner)
            arguments = scalars if is_call else {}
            blocks.append(
                self._enter(inner, stack, is_fixed and is_call, arguments, inside)
            )
        node = Node(eqn, stack, rule, blocks)
        node.meant = meant
        node.ends = ends_of_width(traces.wide, eqn.invars, eqn)
        if self._is_measured:
            node.doubtful = doubtful_constants(traces.wide, eqn, stack)
        if traces.sibling is not None:
            node.follows = traces.sibling.follows(eqn)
            node.asks_for_result = traces.sibling.asks_for_result(eqn)
        if node.name == "convert_element_type" and rule == COMPUTED and 0 in scalars:
            dtype = self.formats.written(eqn.outvars[0].aval.dtype)
            if kind(dtype) == "float" and number_in_dtype(scalars[0], dtype) != scalars[0]:
                node.constant = scalars[0]
        return node

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

    # Lines

    def _note(self, node: Node) -> None:
        """Notes the line of an equation that rounds, and the numbers that it rounds."""
        formats, products, eqn = self.formats, self.formats.products, node.eqn
        dtypes = [v.aval.dtype for v in eqn.outvars if hasattr(v.aval, "dtype")]
        written = [*map(formats.written, dtypes)]
        if node.is_backward:
            self.backward.update(x for x in written if 0 < bits(x) < 32)
        for place, meant in node.meant.items():
            var = eqn.invars[place]
            dtype = formats.written(var.aval.dtype)
            number = most_changed(meant, dtype)
            rounded = number_in_dtype(number, dtype)
            # A limit of a dtype does not round to that of another one.
            if hasattr(var, "val") and not meant.ndim and dtype == var.aval.dtype:
                rounded = number_in_dtype(var.val, dtype)
            self._note_number(node, number, rounded, dtype)
        if node.constant is not None:
            dtype = formats.written(eqn.outvars[0].aval.dtype)
            rounded = number_in_dtype(node.constant, dtype)
            self._note_number(node, node.constant, rounded, dtype)
        if node.rule in (STOCHASTIC, "reduce_precision"):
            node.rounds = not formats.is_own and any(map(formats.rounds, written))
        elif node.rule == COMPUTED:
            node.rounds = self._rounds(eqn) if products is None else products.rounds(eqn)
        if not node.rounds:
            return
        node.line = self.lines.number_of(node.stack)
        line = self.lines[node.line]
        if algorithm := formats.algorithm(eqn, is_wide=False):
            line.products.append(node.stack)
            line.note(node.stack, str(algorithm.dtype))
            return
        for dtype in written:
            if kind(dtype) in ("float", "complex"):
                line.note(node.stack, str(dtype))

    def _note_number(self, node: Node, meant: float, rounded: float, dtype: DType) -> None:
        if not self.formats.rounds(dtype):
            return
        node.constants.append(meant)
        node.line = self.lines.number_of(node.stack)
        line = self.lines[node.line]
        line.dtypes.add(str(dtype))
        line.constants[meant] = rounded

    def _rounds(self, eqn: Equation) -> bool:
        """Whether an equation rounds as written, where it has a wide form."""
        operands, made = ([*map(self._as_written, x)] for x in (eqn.invars, eqn.outvars))
        if not any(map(is_inexact, made)) or primitives.moves(eqn, operands, made):
            return False
        return any(self.formats.rounds(x.dtype) for x in (*made, *operands))

    def _as_written(self, var: Any) -> Aval:
        """What has the dtype of a value as written."""
        dtype = self.formats.written(getattr(var.aval, "dtype", np.dtype(bool)))
        return jax.ShapeDtypeStruct((), dtype)
