"""The audits: which leaves drift, which line of source does it, and what mends it.

May import `_find`, `_guard` and below. Read `audit.py` first, or `step.py`, its twin for a
step. `examine.py` runs the analyses of `_find` and tries out remedies; `report.py` shows
the result.
"""
