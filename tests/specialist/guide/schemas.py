"""Random JSON Schemas and regular expressions."""

from random import Random
from typing import Any

_PATTERNS = ("^[a-z]{2,5}$", "^[A-Z][a-z]{1,4}( [0-9]{1,3})?$", "^(yes|no|a+b)$", "^[0-9]{3}-[0-9]{2}$")
_KEYS = ("a", "b", "name", "größe", "x y", 'quo"te', "$id_", "1")


def random_schema(rng: Random, depth: int = 3) -> dict[str, Any]:
    kinds = ["string", "pattern", "integer", "number", "boolean", "null", "enum", "const"]
    if depth > 0:
        kinds += ["array", "object", "object", "anyOf"]
    match rng.choice(kinds):
        case "string":
            return {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 8)}
        case "pattern":
            return {"type": "string", "pattern": rng.choice(_PATTERNS)}
        case "integer":
            return {"type": "integer", **_bounds(rng)}
        case "number":
            return {"type": "number", **_bounds(rng)}
        case "boolean":
            return {"type": "boolean"}
        case "null":
            return {"type": "null"}
        case "enum":
            return {"enum": rng.sample(["red", "grün", 1, 2.5, None, True, [1, 2], {"k": "v"}], rng.randint(1, 4))}
        case "const":
            return {"const": rng.choice(["fixed", 42, {"deep": [1, {"er": None}]}])}
        case "array":
            least = rng.randint(0, 2)
            return {"type": "array", "items": random_schema(rng, depth - 1), "minItems": least, "maxItems": least + 2}
        case "anyOf":
            return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}
        case _:
            return random_object(rng, depth)


def random_object(rng: Random, depth: int) -> dict[str, Any]:
    keys = rng.sample(_KEYS, rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {key: random_schema(rng, depth - 1) for key in keys},
        "required": [key for key in keys if rng.random() < 0.5],
        "additionalProperties": False,
    }


def _bounds(rng: Random) -> dict[str, int]:
    least = rng.randint(-1000, 1000)
    names = rng.choice((("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")))
    return dict(zip(names, (least, least + rng.randint(2, 5000)), strict=True))


REGEXES = (
    r"[a-z]{3,10}@[a-z]{2,5}\.(com|org)",
    r"\d{4}-\d{2}-\d{2}",
    r"(ab|cd)+e?",
    r" two spaces? ",
    r"[äöü]{1,3}\w*!",
    r"(a+)+$",
    r"^x{2,4}/y$",
    r"(?i)hello",
)
