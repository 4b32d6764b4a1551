"""Signatures of the API's page: the keys of a typed dictionary in place of `**arguments`."""

from __future__ import annotations

from typing import Any

import griffe


class Unpacked(griffe.UnpackTypedDictExtension):
    """Adds the keys to the signature, and only those with a description to the docstring."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Change a function with such arguments."""
        unpacked = any("Unpack" in str(given.annotation) for given in func.parameters)
        super().on_function(func=func, **kwargs)
        if func.docstring is None or not unpacked:
            return
        for section in list(func.docstring.parsed):
            if isinstance(section, griffe.DocstringSectionParameters):
                section.value[:] = [given for given in section.value if given.description]
                if not section.value:
                    func.docstring.parsed.remove(section)
