"""A plan of dtypes as a file, and a program that computes so.

May import `_numbers` and below. Read `plan.py` first: a plan says which work is
narrow, and which functions and expressions compute in another dtype. `matching.py` goes
from an equation to its entry, `decide.py` from entries to a plan of `_numbers`, by which
`emit.py` emits the program again under the trace that is current; products are of
`products.py`, functions with rules of their own of `derivatives.py`. `autocast.py` has the
function, and `calls.py` traces what it is given.
"""
