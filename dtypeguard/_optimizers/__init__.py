"""Optimizers and accumulation that are wrong inside in Optax, in ways that no cast mends.

May import `_leaves`, `_rounding` and `_guard`. Read `fromage.py` first, the shortest whole
optimizer. Of Prodigy `prodigy_step.py` is one update, `prodigy_leaf.py` the arithmetic of
one param and `prodigy_state.py` what is kept. `multi_steps.py` runs an inner optimizer on
the mini-step that emits.
"""
