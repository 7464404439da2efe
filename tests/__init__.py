"""The tests: a folder for each room, and what they share in `support`."""

import os
import re

# What a shell or a CI has set is none of the tests, nor of the processes that they start:
# colors, warnings, annotations, and options of JAX, which reads them when it is imported.
# Where JAX runs stays, and how it compiles.
_GOES = re.compile(
    "JAX_(?!PLATFORM|DISABLE_MOST_OPTIMIZATIONS|COMPILATION_CACHE|PERSISTENT_CACHE)"
    "|FORCE_COLOR|PY_COLORS|PYTHON_COLORS|PYTHONWARNINGS|PYTEST_ADDOPTS|GITHUB_"
)
for _name in list(os.environ):
    if _GOES.match(_name):
        del os.environ[_name]
