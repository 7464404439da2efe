"""The carry of a step: which arguments come back, as which items of the result.

May import `_source` and `_leaves`. Read `carry.py` first: it locates the carry in a call
and in a result. `places.py` finds the arguments and `returned.py` the items. `modules.py`
knows which leaves of a module its library treats as data. `split.py` keeps a tree as it
came in and separates its arrays from the rest; `call.py` does so for a call, so that it can
be repeated with other arrays.
"""
