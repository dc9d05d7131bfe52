"""What a grammar may cost."""

from dataclasses import dataclass, field

from llguidance import LLParserLimits


def _parser_limits() -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=5_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=10_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


@dataclass(frozen=True, slots=True)
class GuideLimits:
    depth: int = 64
    """Brackets of a schema inside each other."""
    seconds: float = 1.0
    """To compile it, before whoever asked is refused."""
    compiling: int = 16
    """At once, the waiting ones included."""
    kept: int = 64
    """Grammars, for those who ask again."""
    kept_bytes: int = 1 << 20
    """Of what they were compiled from."""
    parser: LLParserLimits = field(default_factory=_parser_limits)
    """The library's own: at most some milliseconds a token, some megabytes a grammar."""
