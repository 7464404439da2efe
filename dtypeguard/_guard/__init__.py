"""The guards and their policy: what comes back has the dtypes that it came in with.

May import `_carry`, `_rounding` and `_leaves`. Read `guard.py` first: one update from end
to end; `guard_step.py` is the same for any step. `settle.py` casts and refuses (rules 1, 2
and 7 of the contract), `x64.py` hides the x64 flag (rule 5), `rescue.py` tries a second
time (rule 6), `first_state.py` makes the first state; `precision.py` and `state_dtypes.py`
are what a `Policy` adds; `record.py` serves checkpoints.
"""
