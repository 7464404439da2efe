"""The choice of what stays wide, on errors that add up as squares."""

import itertools
import math

import pytest

from dtypeguard._precision.choosing import Choosing, Spent

ALONE = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0, "e": 0.5, "f": 0.25}


class Program:
    """A program whose lines cause independent errors, with a budget of runs."""

    def __init__(self, budget=1000, coupled=()):
        self.budget, self.coupled, self.runs = budget, coupled, 0
        self._known = {}

    def error_of(self, wide):
        if wide not in self._known:
            if self.runs >= self.budget:
                raise Spent
            self.runs += 1
            narrow = [x for x in ALONE if x not in wide]
            squares = sum(ALONE[x] ** 2 for x in narrow)
            # Two lines of which one alone wide does nothing.
            squares += sum(9.0 for pair in self.coupled if not wide.issuperset(pair))
            self._known[wide] = math.sqrt(squares)
        return self._known[wide]


def _chosen(tolerance, order="abcdef", **options):
    program = Program(**options)
    choice = Choosing([*order], ALONE.__getitem__, program.error_of, tolerance)
    return choice.chosen(), program


@pytest.mark.parametrize("tolerance", [0.0, 0.3, 1.0, 2.0, 3.5, 5.0, 6.0])
@pytest.mark.parametrize("order", ["abcdef", "fedcba", "cafebd"])
def test_it_is_within_and_none_can_be_dropped(tolerance, order):
    chosen, program = _chosen(tolerance, order)
    assert chosen.is_within
    assert chosen.is_minimal
    assert chosen.error == program.error_of(frozenset(chosen.items)) <= tolerance
    for item in chosen.items:
        assert program.error_of(frozenset({*chosen.items} - {item})) > tolerance


def test_what_comes_last_is_dropped_first():
    assert {*_chosen(3.0, "cbaefd")[0].items} == {*"ca"} or {
        *_chosen(3.0, "cbaefd")[0].items
    } == {*"ba"}


def test_lines_that_help_only_together_are_found():
    chosen, _ = _chosen(3.0, coupled=[("e", "f")])
    assert {"e", "f"} <= {*chosen.items}
    assert chosen.is_minimal


def test_all_of_it_is_chosen_where_nothing_is_enough():
    program = Program()
    choice = Choosing([*"ab"], ALONE.__getitem__, lambda x: 1.0 + program.error_of(x), 0.5)
    chosen = choice.chosen()
    assert not chosen.is_within
    assert {*chosen.items} == {*"ab"}


@pytest.mark.parametrize("budget", range(1, 12))
def test_what_was_found_stands_when_the_runs_are_spent(budget):
    chosen, program = _chosen(3.0, "fedcba", budget=budget)
    assert program.runs <= budget
    program.budget = 1000
    if chosen.is_within:
        assert program.error_of(frozenset(chosen.items)) <= 3.0


def test_few_runs_are_made():
    for tolerance, order in itertools.product((0.3, 1, 2, 3.5, 5), ("abcdef", "fedcba")):
        assert _chosen(tolerance, order)[1].runs <= 22
