"""Finds the assignment that gave a variable the value that a line uses.

It is the last one before the line whose block contains the line. Where another may have run
since, in a branch, in a loop or in another function, neither is certain.
"""

import ast
import functools
from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

from .syntax import contains, parsed, root

Names = Container[str] | None


class Assignment(NamedTuple):
    """A line that gives a variable its value, or changes what it holds.

    Attributes:
        line: of the variable.
        function: that contains the line.
        block: the lines that run only after it, as far as they come after it; none of a
            parameter.
        value: the expression that is assigned; None of what is taken out of one, as by a
            loop.
    """

    line: int
    function: str
    block: range = range(0)
    value: ast.expr | None = None

    @property
    def is_parameter(self) -> bool:
        """Whether it declares a parameter, of a function around the one that uses it."""
        return not self.block

    def is_in_head_of(self, line: int) -> bool:
        """Whether it is at the head of the block that contains a line, as in a `for`."""
        return self.block.start > self.line and line in self.block


def assigned_at(
    file: str, name: str, line: int, known: Names = None, *, of_items: bool = False
) -> list[Assignment]:
    """The assignments that may have given a variable the value that a line uses.

    One alone is certain. None for a parameter of the function that runs: its caller tells
    more. The value is no literal, so no assignment of a literal is among them.

    Args:
        file: of the line.
        name: of the variable.
        line: the line that runs.
        known: the local variables that have been assigned; None if that is not known.
        of_items: whether an assignment to an item or an attribute changes the value.
    """
    module = parsed(file)
    around = [] if module is None else _around(module, line)
    is_global = known is not None and name not in known
    owners = _owners(around, name, is_global)
    possible: set[Assignment] = set()
    for scope in owners:
        is_running = scope is around[-1]
        before, is_certain = scope.before(name, line, known if is_running else None)
        possible.update(before)
        if is_running and is_certain:
            break
        # It may have been called before, or have gone on since.
        past = 0 if name in scope.declared else _ALL.stop if is_running else line
        possible.update(x for x in scope.assignments(name) if x.line > past)
        if name in scope.parameters and not is_certain:
            possible.add(Assignment(scope.parameters[name], scope.name))
    for scope in _scopes(around[0].node) if owners else ():
        if scope not in owners and owners[-1].is_declared_in(scope, name):
            possible.update(scope.assignments(name))
    if len(possible) != 1:
        return sorted(possible, key=lambda assignment: assignment.line)
    (only,) = possible
    owner, is_running = owners[-1], owners[-1] is around[-1]
    if only.is_parameter and is_running:
        return []
    source = only.value.id if isinstance(only.value, ast.Name) else ""
    end = line if is_running else None
    changes = owner.changes({name, source}, only.line, end) if of_items else []
    if changes:
        return [*changes, only]
    if source and only.line < line:
        return assigned_at(file, source, only.line, of_items=of_items)
    return [only]


def is_in_head(file: str, line: int) -> bool:
    """Whether a line is of the head of a function, which declares its parameters."""
    module = parsed(file)
    return module is not None and line in _heads(module)


_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
_FOR = ast.For, ast.AsyncFor
_ALL = range(1, 1 << 31)


class _Scope:
    """A module, a class or a function.

    Attributes:
        name: qualified.
        node: its source.
        parameters: of a function, with their lines.
        declared: the variables of another scope, as `ast.Global` or `ast.Nonlocal`.
        stores: the assignments to each variable.
    """

    def __init__(self, name: str, node: Any):
        self.name, self.node = name, node
        self._own = [*_own(node)]
        of = lambda *kinds: [inner for inner in self._own if isinstance(inner, kinds)]
        self._statements = of(ast.stmt)
        self._loops = of(*_FOR, ast.While)
        self.declared: dict[str, type] = {
            variable: type(declaration)
            for declaration in of(ast.Global, ast.Nonlocal)
            for variable in declaration.names
        }
        arguments = ast.walk(node.args) if isinstance(node, _FUNCTIONS) else ()
        self.parameters = {x.arg: x.lineno for x in arguments if isinstance(x, ast.arg)}
        self.stores: dict[str, list[Assignment]] = {}
        self._store(node.body, _ALL)

    def _store(self, body: Sequence[Any], lines: range) -> None:
        """Adds the assignments in a block, which run before the rest of some lines."""
        for node in body:
            block = _lines_of(node.body) if isinstance(node, _FOR) else lines
            is_bare = isinstance(node, ast.AnnAssign) and node.value is None
            for target in () if is_bare else _binding(node):
                if name := _bound(target):
                    value = _value(node, target)
                    assignment = Assignment(target.lineno, self.name, block, value)
                    self.stores.setdefault(name, []).append(assignment)
            for inner in () if isinstance(node, _SCOPES) else _blocks(node):
                self._store(inner, _lines_of(inner))
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                self._store([part], _lines_of(part.body))

    def has(self, line: int) -> bool:
        """Whether a line is in it."""
        return isinstance(self.node, ast.Module) or contains(self.node, line)

    def is_declared_in(self, scope: "_Scope", name: str) -> bool:
        """Whether a function inside declares that it assigns a variable of this scope."""
        kind = ast.Global if isinstance(self.node, ast.Module) else ast.Nonlocal
        return scope.declared.get(name) is kind and self.has(scope.node.lineno)

    def assignments(self, name: str) -> list[Assignment]:
        """All to a variable, but of literals."""
        stores = self.stores.get(name, ())
        return [x for x in stores if not isinstance(x.value, ast.Constant)]

    def before(self, name: str, line: int, known: Names) -> tuple[list[Assignment], bool]:
        """What may have given a variable its value before a line, and whether it has."""
        around = [statement for statement in self._statements if contains(statement, line)]
        start = max((statement.lineno for statement in around), default=line)
        assignments = self.assignments(name)
        passed = [x for x in assignments if x.line < start or x.is_in_head_of(line)]
        last = max((x.line for x in passed if line in x.block), default=0)
        passed = [x for x in passed if x.line >= last]
        loops = [loop for loop in self._loops if loop in around]
        repeated = [loop for loop in loops if loop.lineno > last]
        if not repeated:
            return passed, last > 0
        outer, inner = repeated[0], loops[-1]
        never_ran = [
            first.block
            for variable, stores in self._first_in(outer, start, name).items()
            for first in stores
            if known is not None and variable not in known
            if not _skips(outer, first.line)
        ]
        later = [x for x in assignments if x.line >= start and contains(outer, x.line)]
        later = [x for x in later if not any(x.line in block for block in never_ran)]
        has_turned = any(x in (known or ()) for x in self._first_in(inner, start, name))
        in_each_turn = [x.line for x in later if x.block == _lines_of(inner.body)]
        last_of_turn = max(in_each_turn, default=0)
        if has_turned and in_each_turn and not _skips(inner, last_of_turn):
            passed = [x for x in passed if x.line > loops[0].lineno]
            return passed + [x for x in later if x.line >= last_of_turn], True
        return passed + later, last > 0

    def _first_in(self, loop: Any, line: int, but: str) -> dict[str, list[Assignment]]:
        """The variables that a loop assigns from a line on, and nothing before the line.

        That one of them is known tells that the loop has run; that it is not, that its
        assignment never has.
        """
        return {
            variable: stores
            for variable, stores in self.stores.items()
            if variable not in (but, *self.parameters, *self.declared)
            and line <= min(first.line for first in stores) <= loop.end_lineno
        }

    def changes(
        self, names: Container[str], first: int, last: int | None
    ) -> list[Assignment]:
        """Changes of what variables hold, from one line to another or the end.

        They are assignments to items, and methods whose result is of no use: `append`.
        """
        loops = [loop for loop in self._loops if last and contains(loop, last)]
        changes: list[Assignment] = []
        for node in self._own:
            changed: Any = None
            if isinstance(node, (ast.Subscript, ast.Attribute)):
                changed = None if isinstance(node.ctx, ast.Load) else node
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                changed = node.value.func
            variable, line = root(changed), getattr(changed, "lineno", 0)
            may_run = first <= line < (last or line + 1)
            may_run = may_run or any(contains(loop, line) for loop in loops)
            if isinstance(variable, ast.Name) and variable.id in names and may_run:
                changes.append(Assignment(line, self.name))
        return changes


@functools.lru_cache
def _scopes(module: ast.Module) -> list[_Scope]:
    """A module and all in it, outside in."""
    scopes = [_Scope("<module>", module)]

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _SCOPES):
                scopes.append(_Scope(prefix + child.name, child))
                inner = "." if isinstance(child, ast.ClassDef) else ".<locals>."
                visit(child, prefix + child.name + inner)
            else:
                visit(child, prefix)

    visit(module, "")
    return scopes


@functools.lru_cache(1000)
def _around(module: ast.Module, line: int) -> list[_Scope]:
    """Those that a line is in, outside in."""
    return [scope for scope in _scopes(module) if scope.has(line)]


@functools.lru_cache
def _heads(module: ast.Module) -> frozenset[int]:
    """The lines that declare parameters."""
    return frozenset(x for scope in _scopes(module) for x in scope.parameters.values())


def _owners(around: Sequence[_Scope], name: str, is_global: bool) -> list[_Scope]:
    """The scope whose variable a name is, behind those that declare it, inside out."""
    owners: list[_Scope] = []
    for scope in reversed(around):
        is_class = isinstance(scope.node, ast.ClassDef) and scope is not around[-1]
        if scope is around[0] or name in scope.declared:
            owners += [scope] if owners or name in scope.stores else []
            is_global = is_global or scope.declared.get(name) is ast.Global
        elif name in (*scope.stores, *scope.parameters) and not (is_class or is_global):
            return [*owners, scope]
    return owners


def _value(node: ast.AST, target: ast.AST) -> ast.expr | None:
    """The expression that a statement assigns to a variable, whole."""
    if isinstance(node, ast.AnnAssign):
        return node.value
    return node.value if isinstance(node, ast.Assign) and target in node.targets else None


def _blocks(node: Any) -> list[list[ast.stmt]]:
    return [getattr(node, field, []) for field in ("body", "orelse", "finalbody")]


def _lines_of(block: Sequence[Any]) -> range:
    return range(block[0].lineno, block[-1].end_lineno + 1) if block else range(0)


def _skips(loop: ast.AST, line: int) -> bool:
    """Whether a turn of a loop may go to the next before a line."""
    return any(isinstance(x, ast.Continue) and x.lineno < line for x in _own(loop))


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
    """What is in a node, but not in a scope inside of it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*_SCOPES, ast.Lambda, ast.comprehension)):
            yield from _own(child)


def _binding(node: ast.AST) -> Iterator[Any]:
    """What is in a statement, but not in a statement inside of it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield child
            yield from _own(child)
