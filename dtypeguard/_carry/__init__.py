"""What a step carries: which arguments come back, as which items of its result.

May import `_leaves`. Read `carry.py` first: where the carry is in a call and in a result.
`places.py` finds the arguments and `result.py` the items, `snapshot.py` keeps a tree as it
came in, and `call.py` takes a call apart so that it can be made with other arrays.
"""
