"""The audits: which leaves drift, which line of source does it, and what fixes it.

May import `_lines`, `_guard` and below. Read `audit.py` first, or `step.py`, its twin for a
step. `examine.py` asks `_lines` which leaves drift, and `findings.py` what else there is;
`report.py` shows the result.
"""
