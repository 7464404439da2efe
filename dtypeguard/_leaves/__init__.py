"""What a leaf is, how it is told of, and what differs between releases of JAX.

The ground floor: no other room is imported here. Read `dtypes.py` first: what counts as
an array leaf, which kinds there are, and the one cast. `rows.py` names leaves by their
path, `errors.py` has the error and the warning, `compat.py` all that depends on a release.
"""
