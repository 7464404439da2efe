"""Optimizers and accumulation that are wrong inside in Optax, in ways that no cast mends.

May import `_leaves`, `_rounding` and `_guard`. Read `fromage.py` first, the shortest whole
optimizer; `prodigy.py` leaves the arithmetic of one param to `prodigy_leaf.py`, and
`multi_steps.py` runs an inner optimizer on the mini-step that emits.
"""
