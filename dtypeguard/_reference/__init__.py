"""Whether rounding explains how a program differs from a reference, and where two part.

May import `_numbers` and below. `comparison.py` takes a reference and compares: `given.py`
reads and checks it, `runs.py` runs a program in some dtypes or in float64, `rounding.py`
says from a few such runs how far rounding takes it, and `reference.py` judges by that.
`divergence.py` finds the first lines at which two functions differ by more.
`difference.py` has the verdicts, and how they are said.
"""
