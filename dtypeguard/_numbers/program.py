"""A traced program as blocks of nodes: one record of each equation, where it stands."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._leaves.dtypes import bits, kind
from .._leaves.types import Aval, DType, Equation, Jaxpr
from .._program.aligned import SecondTraces
from .._program.jaxprs import Stack, Variable
from .._program.program import CALL, Block, Node
from .._program.walk import Walk
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
    COMPUTED,
    OWN,
    REDUCE_PRECISION,
    SAMPLE,
    STOCHASTIC,
    WITHOUT_BLOCKS,
    has_no_wide_form,
    has_reference,
    rule_of,
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
        self.is_measured, self.is_judged = is_measured, is_judged
        if formats.narrow is not None:  # the first line stands for the inputs
            line = self.lines[self.lines.number_of(())]
            dtypes = {x.dtype for x in jaxpr.in_avals if is_inexact(x)}
            line.dtypes |= {str(y) for x in dtypes if (y := formats.written(x)) != x}
        self.block = Block(jaxpr, traces=traces)
        is_fixed = formats.narrow is None
        _Annotation(self).block(self.block, [_Known(is_fixed) for _ in jaxpr.in_avals])
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
        if node.rule in (STOCHASTIC, REDUCE_PRECISION):
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
        node.constants = [*node.constants, meant]
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


class _Known(NamedTuple):
    """What is known of a value before the program runs.

    Attributes:
        is_fixed: whether no line rounds it.
        number: the Python number that it is.
    """

    is_fixed: bool
    number: float | None = None


_UNKNOWN = _Known(False)


class _Annotation(Walk[_Known]):
    """Notes how each equation is run, and which of its constants were meant otherwise."""

    def __init__(self, program: NumericProgram):
        self._program = program
        self._formats = program.formats
        self._is_measured = program.is_measured

    def enter(self, block: Block, arguments: Sequence[_Known]) -> dict[Variable, _Known]:
        constants = [_Known(True) for _ in block.consts]
        return dict(zip(block.inputs, [*constants, *arguments]))

    def literal(self, var: Variable) -> _Known:
        if kind(getattr(var.aval, "dtype", None)) != "float" or np.ndim(var.val):
            return _Known(True)
        return _Known(True, float(np.asarray(var.val)))

    def block(self, block: Block, arguments: Sequence[_Known]) -> list[_Known]:
        if self._is_measured:
            nodes = [node for node in block.nodes if node.name not in primitives.DEBUG]
            block.nodes = nodes
            block.meant = self._meant(block, block.outputs, None)
        block.ends = ends_of_width(block.traces.wide, block.outputs, None)
        results = super().block(block, arguments)
        block.drop_unused()
        return results

    def node(self, node: Node, operands: list[_Known]) -> list[_Known]:
        eqn = node.eqn
        if self._is_measured:
            if has_reference(eqn):
                raise TypeError(
                    "audit_precision does not run programs with mutable references "
                    f"({node.name}): give it a function that returns new arrays."
                )
            node.meant = self._meant(node, eqn.invars, eqn)
            node.doubtful = doubtful_constants(node.traces.wide, eqn, node.stack)
            operands = self._as_meant(node, operands)
        is_fixed = self._is_measured and _are_fixed(node, operands)
        node.rule = rule_of(node, is_fixed, self._formats)
        if node.rule in WITHOUT_BLOCKS:
            node.inner = ()
        if node.rule == OWN and has_no_wide_form(eqn):
            self._program.leave_out(node.stack)
        node.ends = ends_of_width(node.traces.wide, eqn.invars, eqn)
        sibling = node.traces.sibling
        if sibling is not None:
            node.follows = sibling.follows(eqn)
            node.asks_for_result = sibling.asks_for_result(eqn)
        if node.name == "convert_element_type" and node.rule == COMPUTED:
            node.constant = self._rounded_number(node, operands[0].number)
        for block in node.inner:
            if node.rule == CALL:
                self.block(block, [_Known(is_fixed, x.number) for x in operands])
            else:
                self.block(block, [_UNKNOWN] * (len(block.inputs) - len(block.consts)))
        return [_Known(node.rule == SAMPLE)] * len(eqn.outvars)

    def _meant(
        self, user: Node | Block, variables: Sequence[Variable], eqn: Equation | None
    ) -> dict[int, np.ndarray]:
        return meant_constants(
            user.traces.wide,
            variables,
            eqn,
            user.stack,
            self._formats,
            self._program.is_judged,
        )

    def _as_meant(self, node: Node, operands: list[_Known]) -> list[_Known]:
        """Returns the operands with the Python numbers among them as they were meant."""
        result: list[_Known] = []
        for place, operand in enumerate(operands):
            if operand.number is not None and place in node.meant:
                operand = _Known(operand.is_fixed, float(node.meant[place]))
            result.append(operand)
        return result

    def _rounded_number(self, node: Node, number: float | None) -> float | None:
        """Returns the number that a conversion rounds, if it does."""
        dtype = self._formats.written(node.eqn.outvars[0].aval.dtype)
        if number is None or kind(dtype) != "float":
            return None
        return None if number_in_dtype(number, dtype) == number else number


def _are_fixed(node: Node, operands: Sequence[_Known]) -> bool:
    """Returns whether no line rounds an operand."""
    for var, operand in zip(node.eqn.invars, operands):
        if not operand.is_fixed and is_inexact(var.aval):
            return False
    return True
