"""The line that assigned a value: before the one that runs, in the source as it is now."""

import inspect

import numpy as np

from dtypeguard._lines.bindings import Holders, bound_in


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


def test_a_long_list_is_not_searched_to_its_end():
    class Counted(list):
        read = 0

        def __iter__(self):
            for each in super().__iter__():
                Counted.read += 1
                yield each

    many = Counted(range(100_000))
    value, frame = object(), inspect.currentframe()
    found = Holders([(frame, frame.f_lineno)]).line_of(value)
    assert found.code == "value, frame = object(), inspect.currentframe()"
    assert 0 < Counted.read <= 1000 < len(many)
