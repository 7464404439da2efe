"""The line that assigned a value: before the one that runs, in the source as it is now."""

import inspect
import linecache

import numpy as np
import pytest

from dtypeguard._program.bindings import bound_in, holding
from dtypeguard._program.definitions import definition


def test_a_statement_that_runs_has_not_assigned_yet():
    value = np.ones(3)
    frame = inspect.currentframe()
    first = frame.f_lineno - 2
    value = (
        value,
        found := bound_in(frame, value, frame.f_lineno),
    )[0]
    assert found.line == first
    assert found.code == "value = np.ones(3)"


def test_in_a_loop_it_has_assigned_in_an_earlier_turn():
    frame, found = inspect.currentframe(), []

    def step():
        found.append(bound_in(frame, frame.f_locals.get("state"), frame.f_lineno))
        return np.zeros(3)

    for _ in range(2):
        state = step()
    assert state is not None
    assert found[1].code == "state = step()"


def found_in(source, known):
    """Where `find` finds the array `w`, in a module that knows variables already."""
    names = known | {"np": np, "frame": inspect.currentframe, "found": []}
    names["find"] = lambda at: names["found"].append(look(at, inspect.currentframe()))

    def look(at, inside):
        frame = inside.f_back if inspect.isfunction(at) else at  # a decorator
        return bound_in(frame, frame.f_globals["w"], frame.f_lineno)

    linecache.cache["<cell>"] = len(source), None, source.splitlines(True), "<cell>"
    try:
        exec(compile(source, "<cell>", "exec"), names)
    finally:
        del linecache.cache["<cell>"]
    return [each and each.line for each in names["found"]]


CALL = "w = find(frame()) or np.ones(3)\n"
ITEM = "w = [0]\nx = 1\n"
LOOP = "w = np.zeros(3)\nfor n in 'ab':\n    find(frame())\n"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (f"w = np.ones(3)\n{CALL}loss = 1\n", [1]),
        (f"w = np.ones(3)\nfor _ in 'ab':\n    {CALL}    n = 1\nloss = 1\n", [1, 3]),
        ("w = np.ones(3)\nfind(frame())\nw = 1\n", [1]),
    ],
)
def test_a_cell_of_a_notebook_that_has_run_before(source, lines):
    assert found_in(source, {"loss": 0.0}) == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        # Branches, of which one has run.
        ("if 1:\n    w = np.ones(3)\nfind(frame())\n", [2]),
        ("if 1:\n    w = np.ones(3)\nelse:\n    w = 1\nfind(frame())\n", [None]),
        ("x = 1\nif 1:\n    w = np.ones(3)\nelse:\n    w = x\nfind(frame())\n", [None]),
        ("try:\n    w = np.ones(3)\nexcept OSError:\n    w = 1\nfind(frame())", [None]),
        (
            "w = np.ones(3)\nif not w.any():\n    w = 1\n    raise OSError\nfind(frame())",
            [1],
        ),
        (
            "match 1:\n  case 1:\n    w = np.ones(3)\n  case _:\n    w = 1\nfind(frame())",
            [None],
        ),
        ("w = np.ones(3)\n@find\ndef f():\n    w = 1\n", [1]),
        ("w = np.ones(3)\nw: object\nfind(frame())\n", [1]),
        ("w = np.ones(3)\nv = [w for w in 'ab']\nfind(frame())\n", [1]),
        # Errors, and what leaves a block or a loop.
        (
            "try:\n    w = np.ones(3)\n    if 1:\n        raise OSError\n    w = 1\n"
            "except OSError:\n    find(frame())\n",
            [None],
        ),
        (
            "w = np.ones(3)\ntry:\n    v = 1\nexcept OSError:\n    w = 1\n    raise\n"
            "finally:\n    find(frame())\n",
            [None],
        ),
        (
            "from contextlib import suppress\nw = np.ones(3)\nwith suppress(OSError):\n"
            "    raise OSError\nfind(frame())\n",
            [2],
        ),
        (
            "w = np.ones(3)\nfor n in 'a':\n    break\nelse:\n    w = 1\nfind(frame())\n",
            [1],
        ),
        (
            "for n in 'ab':\n    w = np.ones(3)\n    find(frame())\n    if 1:\n"
            "        continue\n    w = 1\n",
            [2, 2],
        ),
        ("while True:\n    w = np.ones(3)\n    if 1:\n        break\nfind(frame())\n", [2]),
        ("w = 0\nfor n in 'ab':\n    w = w + np.ones(3)\nfind(frame())\n", [3]),
        ("w = 0\nfor n in 'ab':\n    w = np.ones(3)\nn = 1\nfind(frame())\n", [None]),
        # What else binds a variable.
        ("match {'w': np.ones(3)}:\n  case {'w': w}:\n    find(frame())\n", [2]),
        ("w = 1\nmatch [np.ones(3)]:\n  case [\n    w\n  ]:\n    find(frame())\n", [4]),
        ("match np.ones(3):\n  case w:\n    pass\nfind(frame())\n", [2]),
        ("match [np.ones(3)]:\n  case [*w]:\n    find(frame())\n", [2]),
        ("w = 1\nfrom numpy import pi as v, ScalarType as w\nfind(frame())\n", [2]),
        ("w = 1\nimport numpy as w\nfind(frame())\n", [2]),
        ("w = np.ones(3)\nimport numpy.linalg as v\nfind(frame())\n", [1]),
        ("w = 1\n@np.vectorize\ndef w():\n    pass\nfind(frame())\n", [3]),
        ("w = 1\nclass w:\n    pass\nfind(frame())\n", [2]),
        (
            "w = 1\ntry:\n    1 / 0\nexcept OSError as w:\n    pass\n"
            "except ArithmeticError as w:\n    find(frame())\n",
            [6],
        ),
        # Assignments to an item.
        (f"{ITEM}find(frame())\nw[0] = 1\n", [1]),
        (f"{ITEM}w[0] = find(frame())\n", [1]),
        (f"{ITEM}w[0] = x\nfind(frame())\n", [None]),
        (f"{ITEM}for _ in 'a':\n    find(frame())\n    w[0] = 1\n", [None]),
        ("def f():\n    find(frame())\nw = [0]\nw[0] = 1\nf()\n", [None]),
        ("w = np.ones(3)\nw[0] = 2\nfind(frame())\n", [1]),
        (f"{ITEM}w.append(x)\nfind(frame())\n", [None]),
        (f"{ITEM}v = w.copy()\nfind(frame())\n", [1]),
        ("w = {'a': {}}\nw['a'].update(b=1)\nfind(frame())\n", [None]),
        (f"{ITEM}del w[0]\nfind(frame())\n", [None]),
        ("w = {0}\nx = 1\nif w:\n    w.add(x)\nfind(frame())\n", [None]),
        # Another name for what a variable held.
        ("x = np.ones(3)\nw = x\nx = 1\nfind(frame())\n", [1]),
        ("x = np.ones(3)\ny = x\nw = y\nx = y = 1\nfind(frame())\n", [1]),
        (
            "x = np.ones(3)\nif 1:\n    w = x\nelse:\n    w = 1\nx = 1\nfind(frame())",
            [None],
        ),
        ("x = 1\nif 1:\n    x = np.ones(3)\nw = x\nx = 1\nfind(frame())\n", [None]),
        ("w = np.zeros(3)\nx = np.ones(3)\nw = x\nx = 1\nfind(frame())\n", [2]),
        ("x = [1]\nw = x\nw[0] = 2\nx = 1\nfind(frame())\n", [None]),
        ("x = [1]\nw = x\nx[0] = 2\nx = 1\nfind(frame())\n", [None]),
        ("x = w = np.ones(3)\nx = w\nw = x\nx = 1\nfind(frame())\n", [1]),
        # A line of the loop that comes after.
        (f"{LOOP}    loss = 1\n    w = np.ones(3)\n", [1, 5]),
        (f"{LOOP}    w = np.ones(3)\n", [None, None]),
        (f"{LOOP}    w = np.ones(3)\n    loss = 1\n", [1, 4]),
    ],
)
def test_the_definition_that_reaches_a_line(source, lines):
    assert found_in(source, {}) == lines


def test_a_long_list_is_not_searched_to_its_end():
    class Counted(list):
        read = 0

        def __iter__(self):
            for each in super().__iter__():
                Counted.read += 1
                yield each

    many = Counted(range(100_000))
    value, frame = object(), inspect.currentframe()
    found = holding([(frame, frame.f_lineno)], value)
    assert found.code == "value, frame = object(), inspect.currentframe()"
    assert 0 < Counted.read <= 1000 < len(many)


def test_the_source_is_read_again_after_an_edit():
    lines = ["x = 1\n", "y = x\n"]
    for shift in range(2):
        text = "\n" * shift + "".join(lines)
        linecache.cache["<edited>"] = len(text), None, text.splitlines(True), "<edited>"
        assert definition("<edited>", "x", 2 + shift, ()).line == 1 + shift
    del linecache.cache["<edited>"]
