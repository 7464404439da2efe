"""What a leaf is, how messages describe it, and what differs between releases of JAX.

This room imports no other. Read `dtypes.py` first: what counts as an array leaf, the kinds
of dtypes, and the one cast. A leaf's type is a record in `leaf_type.py`, what became of it
one in `leaf_change.py`, its path a tuple of JAX's keys (`key_path.py`) until `table.py`
prints all of them. `errors.py` defines the error and the warning, `compat.py` holds
everything that depends on a release, and `internals.py` what depends on the insides of
libraries.
"""
