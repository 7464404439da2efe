"""The guards and their policy: outputs get the dtypes of the inputs.

May import `_carry`, `_rounding` and `_leaves`. Read `guard.py` first: it follows one update
from end to end. `guard_step.py` does the same for any step. `settle.py` casts and refuses
(rules 1, 2 and 7 of the contract), and `attempts.py` hides the x64 flag (rule 5) and runs
a failed update again (rule 6). `precision.py` implements what a `Policy` adds. `record.py`
serves checkpoints.
"""
