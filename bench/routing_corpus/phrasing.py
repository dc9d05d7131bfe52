"""Turns a subject, prose and code into prompts as people write them. The same phrasings serve all languages, so that a phrasing says nothing about the label."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Item:
    subject: str  # what the prompt is about, such as `std::vector::push_back` or `Thread pools`
    prose: str  # sentences of the source about the subject
    code: str  # code of the source; empty if there is none
    label: str
    language: str  # as people name it; empty if the subject already names it


_SHORT = """\
What does {s} do{in}?|How do I use {s}{in}?|{s}{in}: when should I use it?|explain {s}{in}|can you explain {s} to me?
how does {s} work{in}|What is {s}{in} and why would I need it?|example of {s}{in} please|{s} example{in}
I don't understand {s}{in}|Is there a simple explanation of {s}{in}?|What are the pitfalls of {s}{in}?
When is {s} the wrong choice{in}?|need help with {s}{in}|What is the difference between {s} and the alternatives{in}?
Best practice for {s}{in}?|quick question about {s}{in}: what should I watch out for?|{s}{in}
Could you show me how {s} is meant to be used{in}?|Why would one use {s}{in}?|tell me about {s}{in}"""
_TONGUES = """\
Was macht {s}{in}?|Wie benutze ich {s}{in}?|Wann braucht man {s}{in}?|Kannst du mir {s}{in} erklären?|Was ist der Unterschied zwischen {s} und anderen Wegen{in}?
Ich verstehe {s}{in} nicht.|Wie funktioniert {s}{in}?|Warum funktioniert {s}{in} bei mir nicht?|Gibt es ein Beispiel für {s}{in}?|Schreibe ein Beispiel mit {s}{in}.
Что делает {s}{in}?|Как использовать {s}{in}?|Зачем нужен {s}{in}?|Объясни {s}{in}|Чем {s} отличается от других способов{in}?|Как работает {s}{in}?
Почему у меня не работает {s}{in}?|Покажи пример {s}{in}|Как правильно написать {s}{in}?|Когда нужно использовать {s}{in}?
{s}{in}是什么?|怎么使用{s}{in}?|{s}{in}有什么作用?|请解释一下{s}{in}|{s}{in}和别的方法有什么区别?|为什么我的{s}{in}不工作?|如何用{s}{in}?|什么时候应该用{s}{in}?|给我一个{s}{in}的例子
¿Qué hace {s}{in}?|¿Cómo se usa {s}{in}?|¿Para qué sirve {s}{in}?|Explícame {s}{in}|¿Cuál es la diferencia entre {s} y las alternativas{in}?|No entiendo {s}{in}.
¿Por qué no funciona {s}{in}?|¿Cuándo debo usar {s}{in}?|Escribe un ejemplo de {s}{in}.|À quoi sert {s}{in} ?|Comment utiliser {s}{in} ?|Pourquoi {s}{in} ne marche pas ?
Peux-tu expliquer {s}{in} ?|O que faz {s}{in}?|Come si usa {s}{in}?|Jak działa {s}{in}?|{s}{in} の使い方を教えて|{s}{in} とは何ですか?"""
_CODE_LEADS = """\
I have this code:|Here is my code|Consider the following:|Given this snippet{in},|I am reading a code base and found this:
What does this do?|Can you explain this code{in}?|why does this work|Please explain line by line:|Is this correct{in}?
How does this work?|I am trying to understand this example about {s}:|My colleague wrote this{in}:|What is happening here?
Is there a better way to write this{in}?|Does this do what I think it does?|could someone explain this to me??"""
_CODE_ENDS = """\
How does it work?|Is that right?|What does it print and why?|Could this be written more simply?|Is this guaranteed?
What is the role of {s} here?|Thanks in advance!|Am I missing something?|Why is it done like this?|What would you change?
Can you explain {s}?|Why?||||"""
_PROSE_LEADS = """\
I read this about {s}{in}: "{p}" What does that mean in practice?|About {s}{in} the documentation says: {p} Can you give an example?
{s}: {p} Is that right{in}?|From the manual on {s}{in}: "{p}" I do not get it.|> {p}\n\nWhat does this mean for {s}{in}?
{p}\n\nHow do I apply this to {s}{in}?|According to the docs on {s}{in}: {p} Why is that so?|{p}\nIs this still true for {s}{in}?
I am confused by this{in}: {p} I thought {s} was different.|My notes on {s}{in} say: {p} Is this correct?"""
_TITLE_BODIES = """\
I am new to this and want to understand {s}. {p}|I have been reading about {s}{in}. {p} Could you explain how to do this?
I'm working on a project{in} and ran into {s}. {p} What is the recommended approach?
{p}\nI could not find a good example. How is it done?|Is there a way to do this{in}? {p}"""
_HUNT_LEADS = """\
why doesn't this work??|this gives the wrong answer|My code fails some tests and I can't see why.
Find the bug{in}.|What is wrong with my code?|I get wrong output from this function{in}, please help me fix it
The output is not what I expect.|there is a bug in this code, can you spot it?|it works for the examples but fails on others
Please debug this{in}:|can someone tell me what I did wrong here?|Something is off in here and I cannot find it.
Fix the logic error in this function:|this used to work, now the result is wrong|where is my mistake?"""
_ORDERS = """\
Fix this code{in}.|Fix the syntax errors{in}:|Correct the mistakes in this program{in}.|Debug the following code{in} and explain the fault.
Find the error{in} and write the corrected version.|Repair this function so that it does what it should.|Point out the faulty line{in}.
Rewrite this code{in} without its errors.|Check this code{in} for bugs.|Are there errors in this code? If so, correct them.
This program{in} does not compile. Correct it.|Name the problems of this code{in} and solve them.|The following code{in} is wrong; fix it"""
_FENCES = ("```\n{c}\n```", "{c}", "{c}", "```{tag}\n{c}\n```")
_IN = (" in {l}", " in {l}", " ({l})", " in {l} code", "")
_TAGS = {
    "C in the Linux kernel": "c",
    "C with GLib": "c",
    "C for AVR": "c",
    "C++": "cpp",
    "C": "c",
    "Python": "python",
    "Rust": "rust",
    "Go": "go",
    "JavaScript": "js",
    "Java": "java",
}


def _options(text: str) -> tuple[str, ...]:
    return tuple(part for line in text.split("\n") for part in line.replace("\\n", "\n").split("|"))


SHORT, TONGUES, CODE_LEADS, CODE_ENDS = (
    _options(_SHORT),
    _options(_TONGUES),
    _options(_CODE_LEADS),
    _options(_CODE_ENDS),
)
PROSE_LEADS, TITLE_BODIES, HUNT_LEADS = _options(_PROSE_LEADS), _options(_TITLE_BODIES), _options(_HUNT_LEADS)
ORDERS = _options(_ORDERS)
MAX_CODE_CHARS = 1400


def _fill(form: str, item: Item, where: str) -> str:
    return form.replace("{in}", where).replace("{s}", item.subject).replace("{p}", item.prose)


def _where(item: Item, random: Random) -> str:
    return random.choice(_IN).replace("{l}", item.language) if item.language else ""


def show_code(item: Item, random: Random) -> str:
    tag = _TAGS.get(item.language, item.language.lower())
    code = item.code[:MAX_CODE_CHARS]
    return random.choice(_FENCES).replace("{tag}", tag).replace("{c}", code)


def short_question(item: Item, random: Random) -> str:
    return _fill(random.choice(SHORT), item, _where(item, random))


def other_tongue(item: Item, random: Random) -> str:
    where = random.choice((f" ({item.language})", "")) if item.language else ""
    return _fill(random.choice(TONGUES), item, where)


def with_code(item: Item, random: Random) -> str:
    lead = _fill(random.choice(CODE_LEADS), item, _where(item, random))
    end = _fill(random.choice(CODE_ENDS), item, "")
    return f"{lead}\n\n{show_code(item, random)}\n\n{end}".strip()


def long_question(item: Item, random: Random) -> str:
    where = _where(item, random)
    if item.subject.endswith("?"):
        return "\n\n".join(part for part in (item.subject, item.prose, item.code and show_code(item, random)) if part)
    parts = [_fill(random.choice(SHORT), item, where), _fill(random.choice(TITLE_BODIES), item, where)]
    if item.code:
        parts.append(show_code(item, random))
        parts.append(_fill(random.choice(CODE_ENDS), item, ""))
    return "\n\n".join(part for part in parts if part)


def from_prose(item: Item, random: Random) -> str:
    return _fill(random.choice(PROSE_LEADS), item, _where(item, random))


def code_alone(item: Item, random: Random) -> str:
    return item.code[:MAX_CODE_CHARS]


def subject_alone(item: Item, random: Random) -> str:
    return item.subject


def hunt(item: Item, random: Random) -> str:
    """Return a bug hunt: code with a plain claim that it is wrong."""
    lead = _fill(random.choice(HUNT_LEADS), item, _where(item, random))
    code = show_code(item, random)
    return f"{code}\n\n{lead}" if random.random() < 0.25 else f"{lead}\n\n{code}"


def ordered_hunt(item: Item, random: Random) -> str:
    """Return a bug hunt in the form of an order."""
    return f"{_fill(random.choice(ORDERS), item, _where(item, random))}\n\n{show_code(item, random)}"


_TASK_HUNTS = (
    "{p}\n\n{c}\n\n{h}", "Problem: {p}\n\n{c}", "Task: {p}\n\nMy attempt{in}:\n\n{c}\n\n{h}", "{h}\n\n{c}\n\nIt should do this: {p}",
    "{h}\n\nThe function is meant to do the following. {p}\n\n{c}", "Problem: {p}\n\n{c}\n\n{h}", "{c}\n\nWhat it should do: {p}\n{h}",
    "I wrote this{in}. {p}\n\n{c}\n\nSome tests fail.", "{h}\n\n{c}", "{c}\n\n{h}", "{c}",
)  # fmt: skip


def task_hunt(item: Item, random: Random) -> str:
    """Return a bug hunt, mostly with the description of what the code should do. What belongs to `debug` always claims that
    something is wrong."""
    lead = _fill(random.choice(HUNT_LEADS), item, _where(item, random))
    forms = [form for form in _TASK_HUNTS if item.label != "debug" or "{h}" in form or "fail" in form]
    form = random.choice(forms).replace("{h}", lead).replace("{in}", _where(item, random))
    return form.replace("{p}", item.prose).replace("{c}", show_code(item, random)).strip()


_OTHER_TONGUES = 0.12  # share of the questions about a subject
Form = Callable[[Item, Random], str]


def phrase(item: Item, random: Random, forms: Sequence[Form] | None = None) -> str:
    """Return a prompt about the item, in a form that suits what the item has."""
    if forms is None:
        forms = [short_question]
        if item.code:
            forms += [with_code, with_code, long_question, code_alone]
        if len(item.prose) > 40:
            forms += [long_question, from_prose]
        if item.subject.endswith("?"):
            forms = [subject_alone, subject_alone, long_question, *([with_code] if item.code else [])]
    is_foreign = forms is not None and short_question in forms and random.random() < _OTHER_TONGUES
    text = (other_tongue if is_foreign else random.choice(forms))(item, random)
    roll = random.random()
    if roll < 0.08:
        text = text.lower() if len(text) < 200 else text
    elif roll < 0.14:
        text = f"{random.choice(GREETINGS)}\n{text}"
    elif roll < 0.20:
        text = f"{text}\n{random.choice(THANKS)}"
    return text.strip()


GREETINGS = ("Hi,", "Hello everyone,", "Hey there!", "Good morning,", "Hi all, hope you can help.", "Dear experts,")
THANKS = ("Thanks!", "Thank you in advance.", "thx", "Any help appreciated!", "Many thanks for your time.", "Cheers")
