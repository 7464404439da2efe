"""What other programs call: pytest its plugin, IPython an extension.

It may import the rooms below the command line, and imports one only where an error is to be
explained: `pytest.py` neither imports JAX nor slows a collection. Read either file.
"""

import contextlib
import sys


def recording() -> contextlib.AbstractContextManager[object]:
    """A context in which the lines that make arrays are recorded, if JAX is imported."""
    if "jax" not in sys.modules:
        return contextlib.nullcontext()
    from .._recording.monitored import RECORD

    return RECORD


def add_notes_if_jax(error: BaseException, advice: str = "") -> None:
    """Adds the notes to an error, if JAX is imported; says nothing if that fails.

    Args:
        error: any.
        advice: a sentence for notes in which the line of a value is missing.
    """
    if "jax" in sys.modules:
        with contextlib.suppress(Exception):  # better no note than another error
            from .._explain.explain import explain_error

            explain_error(error, hint=advice)
