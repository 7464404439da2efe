"""What a leaf is, how messages describe it, and what differs between releases of JAX.

This room imports no other. Read `dtypes.py` first: what counts as an array leaf, the kinds
of dtypes, and the one cast. `rows.py` names leaves by path, `groups.py` gives those of one
cause one row, `errors.py` defines the error and the warning, `compat.py` holds everything
that depends on a release, and `internals.py` what depends on the insides of libraries.
"""
