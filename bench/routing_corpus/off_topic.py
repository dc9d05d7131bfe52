"""Sources about other subjects than programming: a dictionary, quotations, small talk and school tasks. They teach what
to reject and measure nothing."""

import re
import zipfile
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from random import Random

import yaml

Prompt = tuple[str, str]  # text and label

_TECHNICAL = re.compile(
    r"comput|program|software|hardware|code|data|compil|algorithm|thread|process|memor|storage|file|network|server|socket|"
    r"string|pointer|class|template|function|container|iterat|vector|list|queue|stack|tree|graph|sort|search|array|lock|mutex|"
    r"future|signal|cache|build|link|debug|error|bug|type|object|operator|lambda|constructor|exception|variable|token|\bc\b",
    re.IGNORECASE,
)
_ABOUT = (
    "What is {w}?", "what does {w} mean", "Tell me about {w}.", "explain {w} to me", "Can you tell me more about {w}?",
    "{g}", "{w}: {g}", "Is it true that {w} is {g}?", "Write a short text about {w}.", "give me ideas for {w}",
    "How do I recognise {w}?", "I need help with {w}. {g}", "Where does the word {w} come from?", "Who invented {w}?",
    "How much does {w} cost?", "{w}", "Was ist {w}?", "Что такое {w}?", "什么是{w}?", "¿Qué es {w}?", "best way to learn {w}",
    "How can I get better at {w}?", "what is the difference between {w} and {o}", "Translate \"{g}\" to French.",
    "Why do people like {w}?", "Recommend a book on {w}", "Summarise this: {g}", "find the best {w} near me",
)  # fmt: skip
_GLOSS = re.compile(r"^\d{8} \d\d n \w\w ([A-Za-z_'-]+) .* \| ([^;\"\n]+)", re.MULTILINE)


def dictionary(packages: Path, random: Random, most: int) -> list[Prompt]:
    """Return questions about nouns of a dictionary, without technical ones."""
    text = (packages / "wordnet-base/usr/share/wordnet/data.noun").read_text(encoding="utf-8", errors="replace")
    nouns = [(w.replace("_", " "), g.strip()) for w, g in _GLOSS.findall(text) if not _TECHNICAL.search(f"{w} {g}")]
    chosen = random.sample(nouns, most)
    return [
        (random.choice(_ABOUT).format(w=word, g=gloss, o=random.choice(nouns)[0]), "reject") for word, gloss in chosen
    ]


_FORTUNE_PACKAGES = (
    "fortunes", "fortunes-min", "fortunes-de", "fortunes-ru", "fortunes-es", "fortunes-it", "fortunes-cs",
    "fortunes-br", "fortunes-pl",
)  # fmt: skip
_OFFICE_LANGUAGES = {  # requests in the words of each language: {t} is a subject
    "zh-cn": ("怎么{t}?", "请帮我{t}。", "请帮我写一篇关于{t}的文章。", "{t}有什么建议？", "{t}", "写一封关于{t}的邮件"),
    "ja": ("{t}はどうすればいいですか？", "{t}について教えてください。", "{t}についての文章を書いてください。", "{t}"),
    "ru": ("Как сделать: {t}?", "Помогите, пожалуйста: {t}.", "Напишите короткий текст на тему «{t}».", "{t}"),
    "de": ("Wie geht das: {t}?", "Bitte hilf mir: {t}.", "Schreibe einen kurzen Text über {t}.", "{t}"),
    "es": ("¿Cómo hago esto: {t}?", "Ayúdame, por favor: {t}.", "Escribe un texto breve sobre {t}.", "{t}"),
    "fr": ("Comment faire : {t} ?", "Aide-moi : {t}.", "Écris un court texte sur {t}.", "{t}"),
}  # fmt: skip
PACKAGES = (
    "wordnet-base", "gnome-user-docs", *_FORTUNE_PACKAGES, *(f"libreoffice-help-{each}" for each in _OFFICE_LANGUAGES),
)  # fmt: skip
_TECHNICAL_FILES = re.compile(
    r"comput|debian|linux|perl|lkml|knghtbrd|magic|ms$|murphy|pocitace|zippy|ascii|channel|infodrom|\.(dat|u8)$|unix|tips"
)
_MAX_QUOTATION_CHARS = 400


def quotations(packages: Path, random: Random, most: int) -> list[Prompt]:
    """Return quotations in several languages, at most `most` of each package."""
    prompts: list[Prompt] = []
    for package in _FORTUNE_PACKAGES:
        paths = [
            path
            for path in sorted((packages / package / "usr/share/games").rglob("*"))
            if path.is_file() and not path.is_symlink() and not _TECHNICAL_FILES.search(path.name)
        ]
        found = [
            part.strip()
            for path in paths
            for part in re.split(r"(?m)^%\s*$", path.read_text(encoding="utf-8", errors="replace"))
            if 15 < len(part.strip()) < _MAX_QUOTATION_CHARS and not _TECHNICAL.search(part)
        ]
        prompts += [(text, "reject") for text in random.sample(found, min(most, len(found)))]
    return prompts


_PATTERN = re.compile(r"<pattern>([^<]+)</pattern>")
_TALK = re.compile(r"/alice/(?!computers|ai\.|alice|bot|wallace|knowledge|reduction|update|mp\d|std)\w+\.aiml$")


def small_talk(wheels: Path, random: Random, most: int) -> list[Prompt]:
    """Return what people say to a chatbot."""
    with zipfile.ZipFile(next(wheels.glob("python-aiml-*.zip"))) as file:
        texts = [file.read(name).decode("latin-1") for name in sorted(file.namelist()) if _TALK.search(name)]
    lines = sorted(
        {line.strip().lower() for text in texts for line in _PATTERN.findall(text) if not re.search(r"[*_]", line)}
    )
    lines = [line for line in lines if len(line) > 6 and not _TECHNICAL.search(line)]
    endings = ("", "", "?", ".", "!", "??")
    return [(f"{line}{random.choice(endings)}", "reject") for line in random.sample(lines, min(most, len(lines)))]


_QUESTION_KEYS = ("input", "question", "problem")
_MAX_TASK_CHARS = 700


def school_tasks(wheels: Path, random: Random, most: int) -> list[Prompt]:
    """Return the worked examples of a benchmark of reasoning: puzzles, arithmetic, common sense."""
    found = set[str]()
    with zipfile.ZipFile(next(wheels.glob("lm_eval-*.whl"))) as file:
        for name in sorted(file.namelist()):
            if name.endswith(".yaml") and (text := file.read(name).decode("utf-8", "replace")).count("samples:"):
                found.update(_samples(text))
    kept = [
        text for text in sorted(found) if 15 < len(text) < _MAX_TASK_CHARS and not re.search(r"\bC\+\+|#include", text)
    ]
    return [(text, "reject") for text in random.sample(kept, min(most, len(kept)))]


def _samples(text: str) -> Iterator[str]:
    try:
        fields = yaml.safe_load(re.sub(r"!function\s+\S+", "''", text))
    except yaml.YAMLError:
        return
    samples = (fields.get("fewshot_config") or {}).get("samples") if isinstance(fields, dict) else None
    for sample in samples if isinstance(samples, list) else ():
        yield from (str(sample[key]).strip() for key in _QUESTION_KEYS if isinstance(sample, dict) and sample.get(key))


_TITLE = re.compile(r"<title>([^<]+)</title>")
_DESCRIPTION = re.compile(r"<desc>\s*([^<]+?)\s*</desc>", re.DOTALL)


def desktop_help(packages: Path, random: Random, most: int) -> list[Prompt]:
    """Return the titles of a desktop's help, sometimes with the description, in dozens of languages."""
    folders = sorted(path for path in (packages / "gnome-user-docs/usr/share/help").iterdir() if path.is_dir())
    prompts: list[Prompt] = []
    for folder in folders:
        pages = sorted((folder / "gnome-help").glob("*.page"))
        for page in random.sample(pages, min(len(pages), most // len(folders))):
            text = page.read_text(encoding="utf-8", errors="replace")
            title, description = _TITLE.search(text), _DESCRIPTION.search(text)
            if title is not None and description is not None:
                about = " ".join(description.group(1).split())
                prompts.append(
                    (
                        random.choice((title.group(1), f"{title.group(1)}?", about, f"{title.group(1)} {about}")),
                        "reject",
                    )
                )
    return prompts


_PARAGRAPH = re.compile(r'<p [^>]*class="paragraph"[^>]*>(.*?)</p>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_MAX_PARAGRAPHS = 8
_SHARES = {"zh-cn": 0.4, "ja": 0.15, "ru": 0.15}  # more of the languages whose letters most other sources lack
_SHARE = 0.1


def office_help(packages: Path, random: Random, most: int) -> list[Prompt]:
    """Return subjects and paragraphs of the help of an office suite as requests in six languages."""
    prompts: list[Prompt] = []
    for language, forms in _OFFICE_LANGUAGES.items():
        root = packages / f"libreoffice-help-{language}/usr/share/libreoffice/help"
        pages = [
            path for part in ("swriter", "scalc", "simpress") for path in sorted(root.glob(f"*/text/{part}/*/*.html"))
        ]
        for page in random.sample(pages, min(len(pages), round(most * _SHARES.get(language, _SHARE)))):
            text = page.read_text(encoding="utf-8", errors="replace")
            title = _TITLE.search(text)
            paragraphs = [" ".join(_TAG.sub("", each).split()) for each in _PARAGRAPH.findall(text)]
            subject = unescape(title.group(1)).strip() if title is not None else ""
            about = "".join(unescape(each) for each in paragraphs[: random.randint(0, _MAX_PARAGRAPHS)])
            if subject and not _TECHNICAL.search(subject):
                prompts.append((f"{random.choice(forms).replace('{t}', subject)}\n{about}".strip(), "reject"))
    return prompts
