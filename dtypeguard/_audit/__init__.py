"""The audits: which leaves drift, which line of source does it, and what fixes it.

May import `_lines`, `_guard` and below. Read `audit.py` first: it makes a subject of an
optimizer or a step. `examine.py` finds which leaves drift and what computes in 64 bits;
`report.py` shows the result.
"""
