"""Recognises small talk: greetings, thanks, short replies, questions about the assistant, openings without a question.

A classifier rejects such a text, because it names no subject. A text on a subject of its own is not small talk.
"""

import re
from collections.abc import Iterable

from router.routing.normal_text import fold_unicode

_MAX_CHARS = 200
_MAX_TOPIC_WORDS = 6
_APOSTROPHES = str.maketrans("", "", "'\N{RIGHT SINGLE QUOTATION MARK}")
_REPEATED = re.compile(r"([^\W\d_])\1+")  # "heeey" is "hey"
_WORD = re.compile(r"[^\W_]+[+#]*")  # C++ and C# are words


def _find_words(text: str) -> list[str]:
    return _WORD.findall(_REPEATED.sub(r"\1", text.casefold().translate(_APOSTROPHES)))


def _read_phrases(text: str) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(_find_words(phrase)) for phrase in text.split(","))


_GREETINGS = """
hi, hello, hey, heya, heyo, hiya, howdy, yo, hola, hallo, hei, salut, bonjour, ciao, namaste, greetings, morning,
evening, good morning, good afternoon, good evening, good day, good night, welcome back, nice to meet you, pleased to
meet you, its me, it is me, im back, i am back, im new here, i am new here, how are you, how are you doing, hows it
going, how is it going, how do you do, how have you been, whats up, what is up, what up, sup, long time no see, test,
testing, just testing
"""
_THANKS = """
thanks, thank you, thx, ty, cheers, much appreciated, i appreciate it, many thanks, youre great, you are great, youre
the best, you are the best, youre awesome, you rock, good job, great job, well done, nice work, good work, that
helped, that helps, that was helpful, that was very helpful, very helpful, that worked, it worked, it works, it works
now, perfect, great, awesome, nice, cool, excellent, amazing, wonderful, brilliant, lovely, good, fine, bye, bye bye,
goodbye, good bye, see you, see you later, see ya, later, talk to you later, have a nice day, have a good day, have a
great day, take care, thats all, that is all, thats it, im done, i am done
"""
_REPLIES = """
ok, okay, k, yes, yeah, yep, yup, no, nope, sure, of course, alright, all right, right, got it, i see, i understand,
understood, makes sense, that makes sense, never mind, nevermind, no problem, no worries, sorry, my bad, oops, please,
lol, haha, hm, well, oh, ah, wow
"""
_ABOUT_ASSISTANT = """
who are you, what are you, whats your name, what is your name, who made you, who built you, are you a bot, are you a
robot, are you a human, are you human, are you an ai, are you real, are you there, you there, is anyone there, anyone
there, is anybody there, anybody there, anyone here, can you hear me, are you working, what can you do, what do you
do, what can you do for me, how do you work, how does this work, what can i ask you, what can i ask, what can you help
me with, what can you help with, what do you know, tell me about yourself, introduce yourself
"""
_OPENINGS = """
can you help, can you help me, could you help, could you help me, can you please help, can you please help me, could
you please help me, would you help me, will you help me, are you able to help me, please help, please help me, help,
help me, i need help, i need some help, i need your help, i could use some help, i would like some help, id like some
help, looking for help, i have a, i have an, i have some, i have a question, quick question, question, can i ask, can
i ask you, may i ask, may i ask you, i want to ask, i want to ask you, id like to ask, i am stuck, im stuck, i am
lost, im lost, do you know, do you speak, do you understand, are you good at, lets talk, can we talk, i want to talk,
lets start, lets get started, can we start, where do i start, where should i start, i want to learn, i would like to
learn, id like to learn, im trying to learn, i am learning, im learning, i am new to, im new to, i am a beginner, im a
beginner, can you teach me, could you teach me, teach me, i am working on, im working on
"""
_FILLER = frozenset(
    _find_words(
        """
a an the my our your some something anything this that it one with about on in at for of to and or me you now here
there today again all everyone everybody folks guys team friend pal mate buddy bro dude man sir bot robot octet
assistant so very much lot bunch million help time answer explanation everything else nothing question questions
problem problems issue issues error errors bug code coding program programs programming project task tasks stuff bit
little quick small basics maybe really urgently
"""
    )
)
_SOCIAL_PHRASES = _read_phrases(",".join((_GREETINGS, _THANKS, _REPLIES, _ABOUT_ASSISTANT)))
_OPENING_PHRASES = _read_phrases(_OPENINGS)
_FIRST_WORDS = frozenset(phrase[0] for phrase in _SOCIAL_PHRASES | _OPENING_PHRASES)
_LONGEST = max(map(len, _SOCIAL_PHRASES | _OPENING_PHRASES))


def find_topics(descriptions: Iterable[str]) -> frozenset[str]:
    """Return the words of the descriptions, as topics for `is_small_talk`."""
    return frozenset(word for text in descriptions for word in _find_words(text))


def is_small_talk(text: str, topics: frozenset[str]) -> bool:
    """Whether the text has only social phrases and filler; or opens a conversation and names, at most, `topics`."""
    if len(text) > _MAX_CHARS:
        return False
    words = _find_words(fold_unicode(text))
    at, is_social, opens, others = 0, False, False, list[str]()
    while at < len(words):
        longest = min(_LONGEST, len(words) - at) if words[at] in _FIRST_WORDS else 0
        sizes = range(longest, 0, -1)
        phrases = (tuple(words[at : at + size]) for size in sizes)
        phrase = next((each for each in phrases if each in _SOCIAL_PHRASES or each in _OPENING_PHRASES), ())
        is_social, opens = is_social or phrase in _SOCIAL_PHRASES, opens or phrase in _OPENING_PHRASES
        if not phrase and words[at] not in _FILLER:
            others.append(words[at])
            if len(others) > _MAX_TOPIC_WORDS:
                return False
        at += len(phrase) or 1
    return (opens and topics.issuperset(others)) or (is_social and not others)
