"""Template, prompt and body become one text."""

import re
from collections.abc import Mapping

from octet.rpc.refusal import invalid, shorten

_PLACEHOLDER = re.compile(r"\{(prompt|body)\}")
_GAP = "\n\n"


def filled(template: str, prompt: str, body: str, most_bytes: int) -> str:
    """Every {prompt} and {body} of the template is replaced once: what is put in is never read for more of them, and
    other braces stay as they are. Raises Refusal before a text over the limit is made, and where a template would
    leave out what the caller said."""
    template = template or ("{prompt}" + _GAP + "{body}" if body else "{prompt}")
    values = {"prompt": prompt, "body": body}
    for name, value in values.items():
        if value and f"{{{name}}}" not in template:
            raise invalid("template", f"text with {{{name}}} in it", shorten(template))
    size = _size(template, values)
    if size > most_bytes:
        raise invalid("template", f"at most {most_bytes:,} bytes with prompt and body in it", f"{size:,} bytes")
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)


def _size(template: str, values: Mapping[str, str]) -> int:
    size = len(template.encode())
    for name, value in values.items():
        marker = f"{{{name}}}"
        size += template.count(marker) * (len(value.encode()) - len(marker))
    return size
