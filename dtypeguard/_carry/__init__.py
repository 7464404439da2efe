"""The carry of a step: which arguments come back, as which items of the result.

May import `_source` and `_leaves`. Read `carry.py` first: it locates the carry in a call
and in a result, and repeats a call with other arrays. `places.py` finds the
arguments and the items. `modules.py` knows which leaves of a module its library treats as
data, and `split.py` separates the arrays of a tree from the rest.
"""
