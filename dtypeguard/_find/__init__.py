"""The analyses of a program, one file each.

May import `_program` and below. Each file has `find(program, lines)`, which yields what it
finds, and a dataclass for one finding. `drift.py` finds the leaves whose types change,
`wide.py` the operations in 64 bits. A new analysis is a file here and an entry in
`_audit/examine.py`.
"""
