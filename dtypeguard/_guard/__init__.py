"""The guard and its policy: `update` gives back the dtypes it was given.

May import `_leaves` and `_rounding`. Read `guard.py` first: one update from end to end.
`settle.py` casts and refuses (rules 1, 2 and 7 of the contract), `scope.py` hides the x64
flag (rule 5), `rescue.py` tries a second time (rule 6), `first_state.py` makes the first
state; `precision.py` and `stored.py` are what a `Policy` adds; `record.py` serves
checkpoints.
"""
