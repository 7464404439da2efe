"""Every optimizer in every configuration, and the contract that each keeps.

May import `_audit`, `_optimizers`, `_guard` and below. Read `sweep.py` first. `catalog.py`
finds the optimizers of the installed Optax, `recipes.py` makes those that need arguments,
and `entry.py` feeds them. `checks.py` has the checks of one configuration, `passed.py`
remembers which of them updates have passed, and `contract.py` has the rules of
`dtypeguard.testing`.
"""
