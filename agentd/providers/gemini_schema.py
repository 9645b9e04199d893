"""A tool's JSON Schema as Gemini takes it, in `parametersJsonSchema`.

The other field, `parameters`, takes an OpenAPI subset whose parser refuses the whole request for one field that it does not
know ($schema, additionalProperties, const, exclusiveMinimum: all of them occur in tools that users add), and an object
without properties. `parametersJsonSchema` takes JSON Schema as any value, so nothing has to be translated; what its reader
has no meaning for is left out below, because refusals of that kind were seen too.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

# Annotations and checks that say nothing to the model.
_LEFT_OUT: Final = frozenset({"$schema", "$id", "$comment", "examples", "readOnly", "writeOnly", "deprecated"})
# Under these, names are names of arguments or definitions and not keywords.
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES: Final = frozenset({"enum", "const", "default", "required"})
_MAX_DEPTH: Final = 64


def parameters_of(schema: Raw) -> Raw | None:
    """The schema to send; None when the tool takes no arguments, or its schema is no object."""
    try:
        value = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not (
        value.get("properties") or value.keys() & {"$ref", "anyOf", "oneOf", "allOf"}
    ):
        return None
    return Raw(msgspec.json.encode({"type": "object", **_clean(value, 0)}))


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return value
    cleaned: dict[str, Any] = {}
    for name, item in value.items():
        if name in _LEFT_OUT:
            continue
        if name == "const":
            cleaned["enum"] = [item]
        elif name in _NAMED and isinstance(item, dict):
            cleaned[name] = {key: _clean(one, depth + 1) for key, one in item.items()}
        else:
            cleaned[name] = item if name in _VALUES else _clean(item, depth + 1)
    return cleaned
