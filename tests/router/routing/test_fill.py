"""A template is filled once, and its values are inserted literally."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.refusal import Refusal
from router.routing.validation import fill_template

MOST = 1000
PIECES = st.sampled_from(
    ["{prompt}", "{body}", "{", "}", "{}", "{0}", "{prompt.__class__}", "{{prompt}}", "%s", "é", " text "]
)
VALUES = st.lists(PIECES, min_size=1, max_size=4).map("".join)


@given(st.lists(PIECES, max_size=6), VALUES, VALUES)
def test_only_the_templates_own_placeholders_are_filled(pieces: list[str], prompt: str, body: str) -> None:
    template = "".join(["{prompt}", *pieces, "{body}"])
    wanted = ""
    rest = template
    while rest:
        name = next((name for name in ("prompt", "body") if rest.startswith(f"{{{name}}}")), None)
        wanted += rest[0] if name is None else {"prompt": prompt, "body": body}[name]
        rest = rest[1 if name is None else len(name) + 2 :]
    assert fill_template(template, prompt, body, MOST) == wanted


@given(VALUES, VALUES)
def test_without_a_template_the_body_follows_the_prompt(prompt: str, body: str) -> None:
    assert fill_template("", prompt, body, MOST) == f"{prompt}\n\n{body}"
    assert fill_template("", prompt, "", MOST) == prompt


@given(st.integers(1, 40), st.text(alphabet="aé€", min_size=1, max_size=60))
def test_size_is_known_before_the_text_is_made(places: int, prompt: str) -> None:
    template = "{prompt}" * places
    size = places * len(prompt.encode())
    if size <= MOST:
        assert len(fill_template(template, prompt, "", MOST).encode()) == size
    else:
        with pytest.raises(Refusal, match=f"{size:,} bytes"):
            fill_template(template, prompt, "", MOST)


def test_an_enormous_result_is_refused_without_being_built() -> None:
    with pytest.raises(Refusal, match="6,250,000,000 bytes"):
        fill_template("{prompt}" * 12_500, "x" * 500_000, "", 2_000_000)
