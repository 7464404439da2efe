"""The audits: which leaves drift, which line of source does it, and what fixes it.

May import `_blame`, `_guard` and below. Read `audit.py` first, the door. `subjects.py`
traces an optimizer or a step and has remedies for it; `examine.py` finds which leaves drift
and what computes in 64 bits, and tries the remedies; `report.py` shows the result.
"""
