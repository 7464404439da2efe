"""A lock: what each function of a step computes in, as text that is kept and checked.

May import `_autocast`, `_costs` and below. Read `step.py` first: it traces a step and makes
its `Lock`. `computations.py` groups the equations of a program by the call of the user's
that they belong to. `lock_file.py` writes and reads the file, `compare.py` finds what
changed, `causes.py` the lines of source behind it, and `check.py` reports that.
"""
