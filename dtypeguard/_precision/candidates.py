"""The lines of a program that a plan may keep wide, with what each is worth."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

import numpy as np

from .._autocast.entries import PlanEntry
from .._autocast.matching import MatchedLine, key_of_line
from .._costs.work import operations, repetitions
from .._numbers.nodes import Node
from .._numbers.plans import wide
from .._numbers.program import NumericProgram
from .._numbers.propagate import ROUNDED, WidthPlan
from .._program.graph import PRODUCTS


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An expression, or a whole function, that a plan may keep wide.

    Attributes:
        place: the file and the function.
        expression: its text; None for the whole function.
        scope: of `jax.named_scope`, if it is that alone; None for all.
        numbers: of its equations.
        work: its share of the multiply-adds.
        has_products: whether it has matrix products or convolutions.
    """

    place: str
    expression: str | None
    scope: str | None
    numbers: frozenset[int]
    work: float
    has_products: bool

    def entry(self, dtype: np.dtype) -> PlanEntry:
        """The entry of a plan that has it in a dtype."""
        return PlanEntry(self.place, self.expression, self.scope, dtype, share=self.work)

    def rounding(self, program: NumericProgram) -> WidthPlan:
        """The plan in which it alone rounds."""
        plan = wide(program)
        plan.entries[[*self.numbers]] = ROUNDED
        return plan


def candidates_in(program: NumericProgram) -> tuple[list[Candidate], int]:
    """What a plan may keep wide, and how many equations that round it cannot name.

    Lines with products are told apart by their scope, where they have several: each scope
    may be a layer with a dtype of its own.
    """
    by_line = defaultdict[MatchedLine, list[Node]](list)
    total, unnamed = 0.0, 0
    for node in program.block.all_nodes():
        total += _work(node)
        if not node.rounds:
            continue
        line = key_of_line(node.stack)
        unnamed += not line.place
        if line.place:
            by_line[line].append(node)
    groups = defaultdict[tuple[str, str | None, str | None], list[Node]](list)
    scoped = {_bare(line) for line, nodes in by_line.items() if any(map(_work, nodes))}
    for line, nodes in by_line.items():
        scope = line.scope or None if _bare(line) in scoped else None
        groups[line.place, line.expression, scope] += nodes
    made = [_candidate(key, nodes, total or 1.0) for key, nodes in groups.items()]
    return _without_lone_scopes(made), unnamed


def grouped(chosen: Collection[Candidate], every: Collection[Candidate]) -> list[Candidate]:
    """Candidates as entries: a scope less, or a whole function, where all of it is in."""
    first = _merged(chosen, every, lambda each: (each.place, each.expression))
    return _merged(first, every, lambda each: (each.place, None))


def _merged(
    chosen: Collection[Candidate],
    every: Collection[Candidate],
    key_of: Callable[[Candidate], tuple[str, str | None]],
) -> list[Candidate]:
    parts = defaultdict[tuple[str, str | None], list[Candidate]](list)
    numbers = defaultdict[tuple[str, str | None], set[int]](set)
    for each in chosen:
        parts[key_of(each)].append(each)
    for each in every:
        numbers[key_of(each)] |= each.numbers
    made = []
    for key, found in parts.items():
        is_whole = numbers[key] == frozenset().union(*(x.numbers for x in found))
        is_one = len(found) == 1 and len(numbers[key]) != len(found[0].numbers)
        made += [_joined(key, found)] if is_whole and not is_one else found
    return made


def _joined(key: tuple[str, str | None], parts: Sequence[Candidate]) -> Candidate:
    return Candidate(
        *key,
        None,
        frozenset().union(*(each.numbers for each in parts)),
        sum(each.work for each in parts),
        any(each.has_products for each in parts),
    )


def _bare(line: MatchedLine) -> tuple[str, str | None]:
    return line.place, line.expression


def _without_lone_scopes(made: Sequence[Candidate]) -> list[Candidate]:
    """The same, with a scope only where an expression has more than one."""
    counts = defaultdict[tuple[str, str | None], int](int)
    for each in made:
        counts[each.place, each.expression] += 1
    is_lone = lambda each: counts[each.place, each.expression] == 1
    return [dataclasses.replace(x, scope=None) if is_lone(x) else x for x in made]


def _candidate(
    key: tuple[str, str | None, str | None], nodes: Sequence[Node], total: float
) -> Candidate:
    return Candidate(
        *key,
        frozenset(node.number for node in nodes),
        sum(map(_work, nodes)) / total,
        any(node.name in PRODUCTS for node in nodes),
    )


def _work(node: Node) -> float:
    return operations(node.eqn) * repetitions(node.stack)
