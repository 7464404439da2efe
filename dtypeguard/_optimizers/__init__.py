"""Optimizers and gradient accumulation that fix what Optax gets wrong beyond dtypes.

May import `_leaves`, `_rounding` and `_guard`. Read `fromage.py` first, the shortest
optimizer. `prodigy.py` has the formulas of Prodigy, and `arithmetic.py` what they need in
low precision. `multi_steps.py` runs an inner optimizer on the mini-step that emits.
"""
