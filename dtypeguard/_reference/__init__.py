"""Whether rounding explains how a program differs from a reference, and where two part.

May import `_paired` and below. `comparison.py` takes a reference and compares: `given.py`
reads and checks it, `roundings.py` draws the roundings of a program anew, and
`reference.py` judges by these. `divergence.py` finds the first lines at which two functions
differ by more. `difference.py` has the verdicts, and how they are said.
"""
