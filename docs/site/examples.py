"""For griffe, which reads docstrings for the API page: "Example:" is its "Examples:"."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Has examples shown as code; a section of any other name is a note to griffe."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object, once it is loaded."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = text.replace("\nExample:\n", "\nExamples:\n")
