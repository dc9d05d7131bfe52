"""A small labelled corpus with three labels, from fields other than C++: SQL, shell and unrelated prompts."""

from router.routing.training.records import LabelledPrompt

_WORDS = {
    "sql": ("select join table index row", "query with a join", "group the rows of a table", "where clause and index"),
    "shell": ("bash pipe grep file loop", "loop over files in bash", "pipe grep into sort", "exit status of a script"),
    "reject": ("cake poem weather song", "a poem about rain", "bake a cake", "the weather tomorrow"),
}
_FRAMES = {"asks": "how do I do this: {}?", "notes": "note to self, {}", "orders": "please write {} now"}


def small_corpus() -> list[LabelledPrompt]:
    return [
        LabelledPrompt(frame.format(words), label, source)
        for source, frame in _FRAMES.items()
        for label, texts in _WORDS.items()
        for words in texts
    ]
