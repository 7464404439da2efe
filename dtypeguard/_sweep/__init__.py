"""What `dtypeguard.testing` checks of an optimizer and a step, and what it feeds them.

May import `_audit`, `_guard` and below. Read `checks.py` first, which has the rules.
`inputs.py` has the dtypes and flags, the params, gradients and further arguments.
"""
