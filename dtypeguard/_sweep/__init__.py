"""Every optimizer in every configuration, and the contract that each must keep.

May import every room but `_cli`. Read `sweep.py` first. `catalog.py` finds the optimizers
of the installed Optax and `recipes.py` says how those are made that need arguments;
`checks.py` are the checks of one configuration, `contract.py` the rules of
`dtypeguard.testing`.
"""
