"""A plan of dtypes as a file, and a program that computes so.

May import `_numbers`, `_lines` and below. Read `plan.py` first: a plan says which work is
narrow, and which functions and expressions compute in another dtype. `matching.py` goes
from an equation to its entry, by the source of its line. `autocast.py` has the function.
"""
