"""Whether rounding explains how a program differs from a reference, and where two part.

May import `_numbers` and below. `comparison.py` takes a reference, and `judge.py` judges by
how far rounding takes a program in a few plain runs. `divergence.py` finds the first lines
at which two functions differ by more. `difference.py` has the verdicts as they are said.
"""
