"""Finds the line that gave a variable its value, as seen from another line.

This is what compilers call the reaching definitions: those that no later one replaces on
some way through the branches and loops of the function. One alone is certain.
"""

import ast
import functools
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from .source import contains, parsed, root


class Definition(NamedTuple):
    """The last line that gave a variable its value.

    Attributes:
        line: of the variable.
        function: that contains the line.
        is_certain: whether no other line may have given the value or changed it.
        is_parameter: whether it declares a parameter, of a function that has returned.
    """

    line: int
    function: str
    is_certain: bool
    is_parameter: bool


def definition(
    file: str, name: str, line: int, names: Container[str], *, of_items: bool = False
) -> Definition | None:
    """The definition of a variable that reaches a line.

    None for a parameter of the function that runs: its caller tells more.

    Args:
        file: of the function.
        name: of the variable.
        line: the line that runs.
        names: the variables that have been assigned; empty if that is not known.
        of_items: whether an assignment to an item or an attribute changes the value.
    """
    module = parsed(file)
    inside = [] if module is None else [each for each in _scopes(module) if each.has(line)]
    for scope in reversed(inside):
        # A function may be called after the last line of its module has run.
        is_over = scope is inside[0] is not inside[-1]
        is_repeated = _is_repeated(scope.node, name, line, names)
        found = _reaching(scope.node, name, None if is_over else line, is_repeated)
        found = {each for each in found if of_items or not each.is_change}
        made = [each for each in found if not each.is_change]
        if not made:
            continue
        last, is_certain = max(made), len(found) == 1
        if last.is_parameter and scope is inside[-1]:
            return None
        if last.source and last.line <= line:
            first = definition(file, last.source, last.line, (), of_items=of_items)
            return first and first._replace(is_certain=is_certain and first.is_certain)
        return Definition(last.line, scope.name, is_certain, last.is_parameter)
    return None


_Function = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
_LOOPS = ast.For, ast.AsyncFor, ast.While


class _Scope(NamedTuple):
    """A module or a function, by its qualified name."""

    name: str
    node: _Function

    def has(self, line: int) -> bool:
        """Whether a line is in it."""
        return isinstance(self.node, ast.Module) or contains(self.node, line)


@functools.lru_cache
def _scopes(module: ast.Module) -> list[_Scope]:
    """A module and all its functions, outside in."""
    scopes = [_Scope("<module>", module)]

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FUNCTIONS):
                scopes.append(_Scope(prefix + child.name, child))
                visit(child, f"{prefix}{child.name}.<locals>.")
            else:
                is_class = isinstance(child, ast.ClassDef)
                visit(child, f"{prefix}{child.name}." if is_class else prefix)

    visit(module, "")
    return scopes


def _is_repeated(
    function: _Function, name: str, line: int, names: Container[str]
) -> bool | None:
    """Whether a loop has run before from a line on; None if nothing tells.

    It has if another variable is known that this line assigns first, or a later one of the
    loop.
    """
    loops, stores = _loops_and_stores(function)
    last = max((end for first, end in loops if first <= line <= end), default=0)
    known = [
        other in names
        for other, first in stores.items()
        if line <= first <= last and other not in (name, *_parameters(function))
    ]
    return any(known) if known and names else None


@functools.lru_cache(1000)
def _loops_and_stores(
    function: _Function,
) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """The first and last lines of loops, and the first line that assigns each variable."""
    loops: list[tuple[int, int]] = []
    stores: dict[str, int] = {}
    for each in _own(function):
        if isinstance(each, _LOOPS):
            loops.append((each.lineno, each.end_lineno or 0))
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            stores[each.id] = min(each.lineno, stores.get(each.id, each.lineno))
    return loops, stores


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a node, but not in a function or a class inside of it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _own(child)


@functools.lru_cache(1000)
def _parameters(function: _Function) -> dict[str, int]:
    """The lines of the parameters of a function, by name."""
    given = () if isinstance(function, ast.Module) else ast.walk(function.args)
    return {each.arg: each.lineno for each in given if isinstance(each, ast.arg)}


class _Made(NamedTuple):
    """A line that gives a variable its value.

    `source` is the variable whose value it takes. A change of what the variable holds, by
    an assignment to an item or by a method such as `append`, adds to the definitions.
    """

    line: int
    source: str = ""
    is_parameter: bool = False
    is_change: bool = False


_State = frozenset[_Made]


@functools.lru_cache(1000)
def _reaching(
    function: _Function, name: str, line: int | None, is_repeated: bool | None
) -> _State:
    """The definitions of a variable that reach a line of a function, or its end if None."""
    flow, parameters = _Flow(name, line, is_repeated), _parameters(function)
    first = [_Made(parameters[name], is_parameter=True)] if name in parameters else []
    end = flow.run(function.body, frozenset(first))
    return end if line is None else flow.found


class _Flow:
    """Follows the definitions of a variable through statements, up to a line.

    Args:
        name: of the variable.
        line: where to stop.
        is_repeated: whether a loop around the line has run before; None if not known.
    """

    def __init__(self, name: str, line: int | None, is_repeated: bool | None):
        self.name, self.line, self.is_repeated = name, line, is_repeated
        self.found: _State = frozenset()

    def run(self, body: Sequence[ast.stmt], state: _State) -> _State:
        """The definitions after some statements, of those before."""
        for node in body:
            if self._is_at(node):
                self.found = state
            state = self._after(node, state)
        return state

    def _is_at(self, node: ast.stmt) -> bool:
        return self.line is not None and contains(node, self.line)

    def _after(self, node: ast.stmt, state: _State) -> _State:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return state
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._after_loop(node, state)
        state = self._assigned(node, state)
        match node:
            case ast.Return() | ast.Raise():
                return frozenset()
            case ast.With() | ast.AsyncWith():
                return self.run(node.body, state)
            case ast.If():
                return self.run(node.body, state) | self.run(node.orelse, state)
            case ast.Match():
                return state.union(*(self.run(each.body, state) for each in node.cases))
            case ast.Try() | ast.TryStar():
                done = self.run(node.body, state)
                handled = [self.run(each.body, state | done) for each in node.handlers]
                ends = self.run(node.orelse, done).union(*handled)
                return self.run(node.finalbody, ends)
        return state

    def _after_loop(
        self, node: ast.For | ast.AsyncFor | ast.While, state: _State
    ) -> _State:

        def turn(start: _State) -> _State:
            if self._is_at(node):
                self.found = start
            return self.run(node.body, self._assigned(node, start))

        known = self.is_repeated if self._is_at(node) else None
        self.is_repeated = None if known else self.is_repeated  # of the outermost loop
        start = state
        if known is not False:
            start = turn(state) if known else state | turn(state)
        return self.run(node.orelse, state | turn(start))

    def _assigned(self, node: ast.stmt, state: _State) -> _State:
        """The definitions after what a statement itself assigns, before its body runs."""
        value = node.value if isinstance(node, ast.Assign) else None
        source = value.id if isinstance(value, ast.Name) else ""
        made, changed = [], []
        for each in [node, *_header(node)]:
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                made += [_Made(each.lineno, source)] * (each.id == self.name)
            elif isinstance(each, (ast.Subscript, ast.Attribute)):
                changed += [] if isinstance(each.ctx, ast.Load) else [each]
            elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
                # A method whose result is of no use, such as `append`.
                changed.append(each.value.func)
        if made:
            return frozenset(made)
        names = {self.name, *(each.source for each in state)}
        roots = [(each.lineno, root(each)) for each in changed]
        return state | {
            _Made(line, is_change=True)
            for line, each in roots
            if isinstance(each, ast.Name) and each.id in names
        }


def _header(node: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement that no statement inside of it contains."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield child
            yield from _own(child)
