"""The carry of a step: which arguments come back, as which items of the result.

May import `_source` and `_leaves`. Read `carry.py` first: it locates the carry in a call
and in a result. `places.py` knows the parameters of a step, `items.py` the items of its
result. `call.py` takes a call apart, to repeat or to trace it with other arrays.
`modules.py` knows which leaves of a module its library treats as data, `split.py` separates
the arrays of a tree from the rest, and `tracing.py` has a trace return more than arrays.
"""
