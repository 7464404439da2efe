"""The record of where values are made, while a script runs, from Python 3.12 on.

While a context, a hook or a command of dtypeguard is open, `monitored.py` has `recorder.py`
remember the line that makes each array. `values.py` finds the arrays in variables and the
variables of a line. Nothing of the user's runs, and JAX is not imported: a script may
choose it first.
"""
