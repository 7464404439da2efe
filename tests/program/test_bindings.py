"""The line that assigned a value: before the one that runs, in the source as it is now."""

import inspect
import linecache

import numpy as np

from dtypeguard._program.bindings import assigned, bound_in


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


def test_the_source_is_read_again_after_an_edit():
    lines = ["x = 1\n", "frame = __import__('inspect').currentframe()\n"]
    for shift in range(2):
        text = "\n" * shift + "".join(lines)
        linecache.cache["<edited>"] = len(text), None, text.splitlines(True), "<edited>"
        exec(compile(text, "<edited>", "exec"), names := {"x": None, "frame": None})
        assert assigned(names["frame"], "x", 2 + shift).line == 1 + shift
    del linecache.cache["<edited>"]
