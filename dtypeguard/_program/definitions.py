"""Finds the line that gave a variable its value, as seen from another line.

This is what compilers call the reaching definitions: those that no later one replaces on
some way through the branches and loops of the function. One alone is certain.
"""

import ast
import functools
from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

from .source import contains, first_line, parsed, root


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
    inside = [] if module is None else _around(module, line)
    for scope in reversed(inside):
        # A function may be called after the last line of its module has run.
        is_over = scope is inside[0] is not inside[-1]
        is_repeated = _is_repeated(scope.node, name, line, names)
        ran = frozenset(each for each in _targets(scope.node) if each[1] in names)
        place = None if is_over else line
        found = _reaching(scope.node, name, place, is_repeated, ran)
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


def is_in_head(file: str, line: int) -> bool:
    """Whether a line is of the head of a function, which declares its parameters."""
    module = parsed(file)
    return module is not None and line in _heads(module)


_Function = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
_LOOPS = ast.For, ast.AsyncFor, ast.While
_Binding = ast.stmt | ast.ExceptHandler | ast.match_case


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


@functools.lru_cache
def _heads(module: ast.Module) -> frozenset[int]:
    """The lines of the heads of all functions."""
    nodes = [each.node for each in _scopes(module)]
    functions = [each for each in nodes if not isinstance(each, ast.Module)]
    return frozenset(
        line
        for each in functions
        for line in (each.lineno, *range(each.lineno, each.body[0].lineno))
    )


@functools.lru_cache(1000)
def _around(module: ast.Module, line: int) -> list[_Scope]:
    """Those that a line is in, outside in."""
    return [each for each in _scopes(module) if each.has(line)]


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
        elif name := _bound(each):
            stores[name] = min(each.lineno, stores.get(name, each.lineno))
    return loops, stores


@functools.lru_cache(1000)
def _targets(function: _Function) -> list[tuple[int, str]]:
    """The lines of `for` loops, each with a variable that only its header assigns.

    The loop has run if that is known.
    """
    own = list(_own(function))
    names = list(map(_bound, own))
    targets = [
        (loop.lineno, each.id)
        for loop in own
        if isinstance(loop, (ast.For, ast.AsyncFor))
        for each in ast.walk(loop.target)
        if isinstance(each, ast.Name)
    ]
    only = lambda name: names.count(name) == 1 and name not in _parameters(function)
    return [(line, name) for line, name in targets if only(name)]


def _bound(node: Any) -> str:
    """The variable that a node itself binds; empty if none."""
    match node:
        case ast.Name(ctx=ast.Store()):
            return node.id
        case ast.alias():
            return node.asname or node.name.partition(".")[0]
        case ast.MatchMapping():
            return node.rest or ""
        case ast.MatchAs() | ast.MatchStar() | ast.ExceptHandler():
            return node.name or ""
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name
    return ""


def _own(node: ast.AST) -> Iterator[Any]:
    """What is in a node, but not in a function or a class inside of it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(
            child, (*_FUNCTIONS, ast.ClassDef, ast.Lambda, ast.comprehension)
        ):
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


_State = frozenset[_Made]  # empty where no way leads
_UNSET = _Made(0)  # before the first definition


@functools.lru_cache(1000)
def _reaching(
    function: _Function,
    name: str,
    line: int | None,
    is_repeated: bool | None,
    ran: frozenset[tuple[int, str]],
) -> _State:
    """The definitions of a variable that reach a line of a function, or its end if None."""
    loops = {each for each, _ in ran}
    flow, parameters = _Flow(name, line, is_repeated, loops), _parameters(function)
    is_known = name in parameters
    first = _Made(parameters[name], is_parameter=True) if is_known else _UNSET
    end = flow.run(function.body, frozenset([first]))
    return ((end or flow.ended) if line is None else flow.found) - {_UNSET}


class _Flow:
    """Follows the definitions of a variable through statements, up to a line.

    Args:
        name: of the variable.
        line: where to stop.
        is_repeated: whether a loop around the line has run before; None if not known.
        ran: the lines of loops that are known to have run.

    Attributes:
        found: the definitions before the line.
        seen: those in what runs: an error may leave it anywhere.
        ended: those where the function returns or raises.
        broken: those where the loop that runs is left.
        continued: those where it goes to its next turn.
    """

    def __init__(
        self, name: str, line: int | None, is_repeated: bool | None, ran: set[int]
    ):
        self.name, self.line, self.is_repeated = name, line, is_repeated
        self.ran = ran
        self.found: _State = frozenset()
        self.seen: _State = frozenset()
        self.ended: _State = frozenset()
        self.broken: _State = frozenset()
        self.continued: _State = frozenset()

    def run(self, body: Sequence[ast.stmt], state: _State) -> _State:
        """The definitions after some statements, of those before."""
        for node in body:
            if self._is_at(node):
                self.found = state
            self.seen |= state
            state = self._after(node, state)
            self.seen |= state
        return state

    def _is_at(self, node: ast.stmt) -> bool:
        if self.line is None:
            return False
        return first_line(node) <= self.line <= (node.end_lineno or 0)

    def _after(self, node: ast.stmt, state: _State) -> _State:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return self._assigned(node, state)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._after_loop(node, state)
        state = self._assigned(node, state)
        match node:
            case ast.Return() | ast.Raise():
                self.ended |= state
                return frozenset()
            case ast.Break():
                self.broken |= state
                return frozenset()
            case ast.Continue():
                self.continued |= state
                return frozenset()
            case ast.With() | ast.AsyncWith():
                done, seen = self._attempt(node.body, state)
                return done or seen  # it may suppress what its body raises
            case ast.If():
                return self.run(node.body, state) | self.run(node.orelse, state)
            case ast.Match():
                cases: list[_State] = []
                for each in node.cases:
                    bound = self._assigned(each, state)
                    cases.append(self.run(each.body, bound))
                    state |= bound if each.guard else frozenset()
                return state.union(*cases)
            case ast.Try() | ast.TryStar():
                done, seen = self._attempt(node.body, state)
                handled = [
                    self._attempt(each.body, self._assigned(each, seen))
                    for each in node.handlers
                ]
                rest, more = self._attempt(node.orelse, done)
                ends = rest.union(*(each for each, _ in handled))
                after = self.run(node.finalbody, ends)
                self.run(node.finalbody, seen.union(more, *(each for _, each in handled)))
                return after
        return state

    def _attempt(self, body: Sequence[ast.stmt], state: _State) -> tuple[_State, _State]:
        """The definitions after some statements, and those where one of them may raise."""
        outer, self.seen = self.seen, state
        done = self.run(body, state)
        seen, self.seen = self.seen, outer | self.seen
        return done, seen

    def _after_loop(
        self, node: ast.For | ast.AsyncFor | ast.While, state: _State
    ) -> _State:

        def turn(start: _State) -> _State:
            if self._is_at(node):
                self.found = start
            before, self.continued = self.continued, frozenset()
            end = self.run(node.body, self._assigned(node, start))
            end, self.continued = end | self.continued, before
            return end

        known = self.is_repeated if self._is_at(node) else None
        self.is_repeated = None if known else self.is_repeated  # of the outermost loop
        start, broken, self.broken = state, self.broken, frozenset()
        if known is not False:
            start = turn(state) if known else state | turn(state)
        end = turn(start)
        out, self.broken = self.broken, broken
        if isinstance(node, ast.While) and isinstance(node.test, ast.Constant):
            end = frozenset()  # `while True` ends by a `break`
        elif self._is_at(node) or node.lineno not in self.ran:
            end |= state
        return self.run(node.orelse, end) | out

    def _assigned(self, node: _Binding, state: _State) -> _State:
        """The definitions after what a statement itself binds, before its body runs."""
        if not state:
            return state
        value = node.value if isinstance(node, ast.Assign) else None
        source = value.id if isinstance(value, ast.Name) else ""
        made, changed = [], []
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return state
        for each in [node, *_header(node)]:
            if name := _bound(each):
                made += [_Made(each.lineno, source)] * (name == self.name)
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


def _header(node: _Binding) -> Iterator[ast.AST]:
    """The expressions of a statement that no statement inside of it contains."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield child
            yield from _own(child)
