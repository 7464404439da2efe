"""Whether rounding explains how a program differs from a reference, and where two part.

May import `_numbers` and below. `comparison.py` takes a reference and compares:
`rounding.py` says from a few plain runs how far rounding takes a program, and
`reference.py` judges by that. `divergence.py` finds the first lines at which two functions
differ by more. `difference.py` has the verdicts, and how they are said.
"""
