"""What a leaf is, how it is described, and what differs between releases of JAX.

The ground floor: it imports no other room. Read `dtypes.py` first: what counts as an array
leaf, which kinds there are, and the one cast. `modules.py` knows which leaves of a module
its library takes for data, `rows.py` names leaves by their path, `errors.py` has the error
and the warning, and `compat.py` all that depends on a release.
"""
