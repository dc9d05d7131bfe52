"""What the trained classifier reads of a prompt: the question and the code, without greetings and thanks.

The question, the code and the names are separate views, so that much code does not drown a short question or the name
of a language. A line belongs to the code if a fence encloses it, or if it looks like code, tool output or a log.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from router.routing.classifier.code_signs import code_sign, used_names
from router.routing.classifier.features import FAMILIES, Features, extract_features
from router.routing.classifier.named_languages import language_sign
from router.routing.solved import after_solved

_IDEOGRAPH = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af])")
_CYRILLIC = "абвгдежзийклмнопрстуфхцчшщъыьэюя"
_LATIN = "a b v g d e zh z i j k l m n o p r s t u f h c ch sh sch - y - e ju ja".replace("-", "").split(" ")
_LETTERS = str.maketrans(dict(zip(_CYRILLIC, _LATIN, strict=True)) | {"ё": "e", "ß": "ss"})
_ACCENTS = re.compile("[\u0300-\u036f]+")


class Views(NamedTuple):
    question: str
    code: str
    names: str  # the languages that the text names and that its code is in, and what the code uses


_CODE_LINE = re.compile(
    r"""\s*(?:
      [\#@]\s*(?:include|define|if|ifdef|ifndef|endif|pragma|else|import|undef|error|property|override)\b
    | (?:import|from|package|using|namespace|class|struct|enum|union|template|typedef|def|fn|func|function|impl|trait
        |let|var|val|const|static|public|private|protected|extern|return|auto|void|int|char|bool|float|double|unsigned|std::
        |pub|mod|use|module|require|end|elif|else|try|except|catch|finally|switch|case|break|continue|async|await|cin|cout)
      \b(?=.*[;:{}()=<>\[\]*&.]|\s*$)
    | (?:if|for|while|foreach|do|with)\s*[({]
    | (?:if|for|while|with)\s.*:\s*$
    | .*[;{}]\s*(?://.*|/\*.*|\\)?$
    | [\])}]+[;,)]*\s*$
    | //|/\*|\*/|\*\s|--\s|\#!|<[/!?\w]
    | [\w.>*\[\]()-]+(?:\s*[-+*/|&^%]|\s*:|\s*<<|\s*>>)?=[^=]
    | [\w:.>-]+\s?\([^()]*\)\s*$
    | (?:[\w./\\+-]+\.\w{1,4}|<stdin>|[\w./-]+):\d+(?::|,|\s)
    | \S*:?\s*(?:fatal\ )?(?:error|warning|note)(?:\[\w+\])?:
    | =+\d+=+|\#\d+\s|\d+\s*\||\s*\|\s|\^|~+
        |Traceback|at\s[\w$.<>]+\(|File\ "|\$\s|>>>\s|-+>\s|In\s(?:file|function|member)
    | [\w./+-]*(?:gcc|g\+\+|clang|ld|cmake|make|ninja|cargo|npm)(?:\[\d+\])?:\s
    | -[-DWIlLfOm]\w
    )""",
    re.VERBOSE,
)  # fmt: skip
_FENCE = re.compile(r"```|~~~+[ \t]*[\w+#-]*[ \t]*\Z")  # tildes may also underline a column in a log
_LOG_INDENT = "    "


def split_lines(text: str) -> tuple[str, str]:
    """Return the lines of the question, and those of code and logs. A blank line outside a fence is the question's."""
    question: list[str] = []
    code: list[str] = []
    is_fenced = False
    for line in text.split("\n"):
        bare = line.lstrip(" \t>")
        if _FENCE.match(bare) and not (bare[0] == "~" and line.startswith(_LOG_INDENT)):
            is_fenced = not is_fenced
            continue
        is_code = is_fenced or (bool(bare) and (line[:4] == "    " or line[:1] == "\t" or _is_code(bare)))
        (code if is_code else question).append(line)
    return "\n".join(question), "\n".join(code)


_PROSE_WORD = re.compile(r"(?:^|\s)[^\W\d_]{2,}(?=[\s,.?!:;]|$)")
_MIN_PROSE_WORDS = 5


def _is_code(line: str) -> bool:
    return _CODE_LINE.match(line) is not None and (
        len(_PROSE_WORD.findall(line)) < _MIN_PROSE_WORDS or line.endswith((";", "{", "}"))
    )


_HELLO = r"""
    (?:hi|hello|hey|hallo|hola|dear|howdy|greetings
      |good\ (?:morning|afternoon|evening|day)|bonjour|salut|guten\ tag|moin
      |привет|здравствуйте|你好|您好)\b
    (?:\ (?:all|there|everyone|everybody|again|guys|folks|team|friends?|experts?|sirs?|community))*
    (?:(?:\ [\w']+)?(?=[,!\n]|\.\s))?"""
_COURTESY = r"""
    (?:i\ )?hope\ (?:you|this|all|every)[^\n.!?]{0,80}
  | (?:i'?\ ?a?m\ )?(?:quite\ |very\ |fairly\ )?new\ here[^\n.!?]{0,40}
  | sorry\ (?:for|if|about)[^\n.!?]{0,60} | please\ help(?:\ me)?(?:\ out)?"""
_REQUEST = r"""
    (?:i\ have\ a\ )?(?:quick|short|simple)\ question(?=\s*[,.!:;\n])
  | (?:can|could)\ (?:you|some\ ?one|any\ ?(?:one|body))
    \ (?:please\ )?help(?:\ me)?(?:\ out|\ with\ this|\ here)?(?=\s*[,.!?:;\n])"""
_THANKS = r"""
    (?:many\ )?(?:thanks?|thx|ty|tia|cheers|danke|merci|gracias|спасибо|谢谢|多谢)\b[^\n.!?]{0,60}
  | (?:any|your|all)\ (?:help|hints?|advice|ideas?|pointers|suggestions?|input)
    (?:\ (?:is|are|would|will|be|welcome|appreciated|greatly|very|much|highly|really|please|in|advance|with|this|on))*
  | (?:i\ )?(?:(?:would|really|greatly|very|much)\ )*(?:be\ )?(?:grateful|appreciat\w*)\b[^\n.!?]{0,60}
  | (?:best|kind|warm)?\ ?(?:regards|wishes)[^\n.!?]{0,40}
  | (?:have|enjoy)\ (?:a|your)\ (?:nice|great|good)[^\n.!?]{0,30}
  | looking\ forward[^\n.!?]{0,60} | sincerely[^\n.!?]{0,40}"""
_FLAGS = re.VERBOSE | re.IGNORECASE
_END = r"(?=\s*(?:[.!?;\n]|\Z))"  # of a sentence
_OPENING = re.compile(rf"\A\s*(?:{_HELLO}|{_REQUEST}|(?:{_COURTESY}|{_THANKS}){_END})[\s,.!?;:\u3002)]*", _FLAGS)
_CLOSING = re.compile(rf"(?:\A|(?<=[\s.!?,;\u3002]))(?:{_THANKS}|{_COURTESY})[\s.!?,;:)\u3002]*\Z", _FLAGS)
_CLOSING_HINTS = (
    "thank", "thanx", "thx", "ty", "tia", "cheers", "danke", "merci", "gracias", "спасибо", "谢谢", "多谢", "help",
    "hint", "advice", "idea", "pointer", "suggest", "input", "grateful", "appreciat", "regards", "wishes", "have a",
    "enjoy", "forward", "sincerely", "hope", "new here", "sorry",
)  # fmt: skip
"""Every closing has one of these words; they are searched for first, because that is fast."""
_CLOSING_CHARS = 160
_MAX_BOILERPLATE = 4
_MIN_REST_CHARS = 8


def strip_boilerplate(text: str) -> str:
    """Return the text without greetings at its start and thanks at its end; the text itself if nothing else is left."""
    rest = text
    for _ in range(_MAX_BOILERPLATE):
        match = _OPENING.match(rest)
        if match is None:
            break
        rest = rest[match.end() :]
    for _ in range(_MAX_BOILERPLATE):
        tail = rest[-_CLOSING_CHARS:]
        lower = tail.lower()
        match = _CLOSING.search(tail) if any(hint in lower for hint in _CLOSING_HINTS) else None
        if match is None:
            break
        rest = rest[: len(rest) - len(tail) + match.start()].rstrip()
    return rest if len(rest.strip()) >= _MIN_REST_CHARS else text


_MIN_QUESTION_CHARS = 30


def skip_solved(text: str) -> str:
    """Return what follows the statement that an error is solved; the text itself if too little follows."""
    rest = text[after_solved(text) :]
    return rest if len(rest.strip()) >= _MIN_QUESTION_CHARS else text


def read_views(text: str) -> Views:
    """Return the views of a text. Cyrillic and accented letters become ASCII, because loan words are then alike in all
    languages. Ideographs become words of one character."""
    rest = skip_solved(text)
    question, code = split_lines(rest)
    names = f"{language_sign(question, rest)} {code_sign(code)} {used_names(rest)}"
    views = Views(strip_boilerplate(question), code, names)
    return views if text.isascii() else Views(*map(_to_ascii, views))


def _to_ascii(text: str) -> str:
    plain = _ACCENTS.sub("", unicodedata.normalize("NFD", text.lower().translate(_LETTERS)))
    return _IDEOGRAPH.sub(r" \1 ", unicodedata.normalize("NFC", plain))


FEATURE_VERSION = 2
"""Must rise when a prompt gets other features or they get other indices: shadow comparisons keep features."""
VIEW_FAMILIES = tuple(f"{family} of the {view}" for view in Views._fields for family in FAMILIES)
ViewBytes = tuple[bytes, bytes, bytes]  # the views in UTF-8


def encode_views(sample: bytes) -> ViewBytes:
    question, code, names = read_views(sample.decode("utf-8", "replace"))
    return question.encode(), code.encode(), names.encode()


def extract_view_features(prompts: Sequence[ViewBytes]) -> Features:
    """Return the features of a batch; their families are VIEW_FAMILIES. Raises ValueError if the batch is too large."""
    found = extract_features([view for views in prompts for view in views])
    prompt, view = np.divmod(found.prompt, len(Views._fields))
    return Features(prompt, found.family + (view * len(FAMILIES)).astype(np.uint8), found.bucket)
