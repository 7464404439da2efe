"""The assignment that gave a variable its value, as seen from a line that uses it."""

import contextlib
import inspect
import linecache
import random

import pytest

from dtypeguard._source.assignments import assigned_at


class Value:
    """Knows the line that made it."""

    def __init__(self):
        self.line = inspect.currentframe().f_back.f_lineno


def seen(source, *, of_items=False, **names):
    """The line of `w` that each `use()` of a program sees; None where none is certain."""
    lines = []

    def use(*_):
        frame = inspect.currentframe().f_back
        known = set(frame.f_locals)
        possible = assigned_at("<cell>", "w", frame.f_lineno, known, of_items=of_items)
        lines.append(possible[0].line if len(possible) == 1 else None)
        return Value()

    linecache.cache["<cell>"] = len(source), None, source.splitlines(True), "<cell>"
    try:
        exec(compile(source, "<cell>", "exec"), {"use": use, "Value": Value, **names})
    finally:
        del linecache.cache["<cell>"]
    return lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        # Blocks.
        ("w = Value()\nuse()\nw = Value()\n", [1]),
        ("w = Value()\nw = use()\n", [1]),
        ("if 1:\n    w = Value()\nuse()\n", [2]),
        ("w = 0\nif 1:\n    w = Value()\n    use()\nelse:\n    w = use()\n", [3]),
        ("if 1:\n    w = Value()\nelse:\n    w = Value()\nuse()\n", [None]),
        ("if 1:\n    w = Value()\nelse:\n    w = 1\nuse()\n", [2]),
        ("try:\n    w = Value()\nexcept OSError:\n    w = Value()\nuse()\n", [None]),
        (
            "try:\n    w = Value()\n    1 / 1\nfinally:\n    use()\n",
            [2],
        ),
        ("match 1:\n  case 1:\n    w = Value()\n    use()\n  case _:\n    w = 1\n", [3]),
        # Loops.
        ("w = Value()\nfor n in 'ab':\n    use()\n    w = Value()\n    loss = 1\n", [1, 4]),
        ("w = Value()\nfor n in 'ab':\n    use()\n    w = Value()\n", [None, None]),
        ("w = Value()\nfor n in 'ab':\n    w = Value()\n    use()\n", [3, 3]),
        ("w = Value()\nfor n in 'a':\n    w = Value()\nuse()\n", [None]),
        ("for w in [Value()]:\n    use()\n", [1]),
        (
            "for _ in 'ab':\n    w = Value()\n    for n in 'ab':\n        use()\n"
            "        w = Value()\n        loss = 1\n",
            [2, None, None, None],
        ),
        # What else binds a variable.
        ("match {'w': Value()}:\n  case {'w': w}:\n    use()\n", [2]),
        ("w = 1\nmatch [Value()]:\n  case [\n    w\n  ]:\n    use()\n", [4]),
        ("match [Value()]:\n  case [*w]:\n    use()\n", [2]),
        ("w = Value()\nfrom math import pi as v, tau as w\nuse()\n", [2]),
        ("w = Value()\nimport os.path as v\nuse()\n", [1]),
        ("w = Value()\n@Value.__class__\ndef v():\n    w = 1\nuse()\n", [1]),
        ("w = Value()\nclass w:\n    pass\nuse()\n", [2]),
        ("w = Value()\nclass A:\n    w = Value()\n    use()\n", [3]),
        ("try:\n    1 / 0\nexcept ArithmeticError as w:\n    use()\n", [3]),
        ("w = Value()\nw: object\nuse()\n", [1]),
        ("w = Value()\nv = [w for w in 'ab']\nuse()\n", [1]),
        # Other names for a value.
        ("x = Value()\nw = x\nx = 1\nuse()\n", [1]),
        ("x, w = Value(), 1\nw = x\nx = w\nw = x\nuse()\n", [1]),
        ("if 1:\n    x = Value()\nelse:\n    x = Value()\nw = x\nuse()\n", [None]),
        # Functions.
        ("w = Value()\ndef f():\n    use()\nf()\n", [1]),
        ("w = Value()\ndef f():\n    use()\nw = Value()\nf()\n", [None]),
        ("w = None\ndef f():\n    global w\n    w = Value()\nf()\nuse()\n", [4]),
        ("w = Value()\ndef f():\n    global w\n    w = Value()\nf()\nuse()\n", [None]),
        ("w = Value()\ndef f():\n    global w\n    w = Value()\n    use()\nf()\n", [4]),
        (
            "w = Value()\ndef f():\n    w = 1\n    def g():\n        use()\n    g()\nf()\n",
            [1],
        ),
        ("def f(w):\n    use()\nf(Value())\n", [None]),
    ],
)
def test_the_assignment_that_a_line_sees(source, lines):
    assert seen(source) == lines


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("w = [0]\nuse()\nw[0] = 1\n", 1),
        ("w = [0]\nw[0] = use()\n", 1),
        ("w = [0]\nw[0] = 1\nuse()\n", None),
        ("w = [0]\nfor _ in 'a':\n    use()\n    w[0] = 1\n", None),
        ("def f():\n    use()\nw = [0]\nw[0] = 1\nf()\n", None),
        ("w = [0]\nw.append(1)\nuse()\n", None),
        ("w = [0]\nv = w.copy()\nuse()\n", 1),
        ("w = {'a': {}}\nw['a'].update(b=1)\nuse()\n", None),
        ("w = [0]\ndel w[0]\nuse()\n", None),
        ("x = [1]\nw = x\nx[0] = 2\nx = 1\nuse()\n", None),
    ],
)
def test_a_change_of_what_a_variable_holds(source, line):
    assert seen(source, of_items=True) == [line]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("w = Value()\nw = use()\nloss = 1\n", [1]),
        ("w = Value()\nfor _ in 'ab':\n    w = use()\n    n = 1\nloss = 1\n", [1, 3]),
    ],
)
def test_a_cell_of_a_notebook_that_has_run_before(source, lines):
    assert seen(source, loss=0.0) == lines


def test_the_source_is_read_again_after_an_edit():
    for text, line in (("w = Value()\nuse()\n", 1), ("\nw = Value()\nuse()\n", 2)):
        assert seen(text) == [line]


def program(draw, depth=3, is_function=False, is_loop=False):
    """The lines of a block of a program that assigns `v` and `w`, and uses them."""
    lines = []
    for _ in range(draw.randint(1, 3)):
        name = draw.choice("vw")
        simple = [f"{name} = Value()"] * 5 + [f"{name} = 1", f"n{draw.randint(0, 5)} = 1"]
        simple += ["use()"] * 3 + ["if coin(): raise Stop"]
        simple += ["if coin(): break", "if coin(): continue"] * is_loop
        simple += ["if coin(): return"] * is_function
        if depth == 0 or draw.random() < 0.6:
            lines.append(draw.choice(simple))
            continue

        def block(is_function=is_function, is_loop=is_loop):
            inner = program(draw, depth - 1, is_function, is_loop)
            return ["    " + line for line in inner]

        head = draw.choice(["if", "if", "for", "for", "while", "try", "def", "def"])
        if head == "if":
            lines += ["if coin():", *block(), "else:", *block()]
        elif head == "for":
            target = draw.choice(["i", "j", name])
            lines += [f"for {target} in some():", *block(is_loop=True)]
        elif head == "while":
            lines += ["while coin():", *block(is_loop=True)]
        elif head == "try":
            lines += ["try:", *block(), "except Stop:", *block()]
        else:
            kind = "nonlocal" if is_function else "global"
            declared = draw.choice([[f"    {kind} {name}"], []])
            lines += ["def f():", *declared, *block(True, False), "f()"]
    return lines


class Stop(Exception):
    """Left by a random program."""


def results_of(draw):
    """Whether each line that a random program finds is right; None where it finds none."""
    body = ["v = Value()", "w = Value()", *program(draw, is_function=True)]
    lines = [*body[:2], "def g():", *["    " + line for line in body], "g()"]
    text, results, turns = "\n".join(lines), [], iter(range(200))

    def coin():
        next(turns)
        return draw.random() < 0.5

    def some():
        items = [Value() for _ in range(draw.randint(0, 3))]
        for item in items:
            item.line = inspect.currentframe().f_back.f_lineno
        return items

    def use():
        frame = inspect.currentframe().f_back
        for name, value in {**frame.f_globals, **frame.f_locals}.items():
            if name in ("v", "w") and isinstance(value, Value):
                known = set(frame.f_locals)
                possible = assigned_at("<cell>", name, frame.f_lineno, known)
                is_right = possible[0].line == value.line if len(possible) == 1 else None
                assert is_right is not False, (text, frame.f_lineno, name)
                results.append(is_right)

    names = {"Value": Value, "use": use, "coin": coin, "some": some, "Stop": Stop}
    linecache.cache["<cell>"] = len(text), None, text.splitlines(True), "<cell>"
    with contextlib.suppress(Stop, NameError, SyntaxError, StopIteration):
        exec(compile(text, "<cell>", "exec"), names)
    del linecache.cache["<cell>"]
    return results


def test_a_line_that_is_certain_made_the_value():
    """In random programs, in which each value knows its line."""
    draws = [random.Random(seed) for seed in range(400)]
    results = [result for draw in draws for result in results_of(draw)]
    assert results.count(True) > 2 * results.count(None) > 0
