"""The carry of a step: which arguments come back, as which items of the result.

May import `_leaves`. Read `carry.py` first: it locates the carry in a call and in a result.
`places.py` finds the arguments and `returned.py` the items. `snapshot.py` keeps a tree as
it came in. `call.py` splits a call, so that it can be repeated with other arrays.
"""
