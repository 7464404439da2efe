"""What `dtypeguard.testing` checks of an optimizer and a step, and what it feeds them.

May import `_audit`, `_guard` and below. Read `contract.py` first, which has the rules.
`checks.py` has what breaks a training loop, `inputs.py` the dtypes and flags, the params,
gradients and further arguments.
"""
