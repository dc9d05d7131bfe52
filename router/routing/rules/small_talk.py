"""Recognises small talk: greetings, thanks, short replies, questions about the assistant, and openings without a question.

A classifier rejects such text, because it names no subject. A rejected text about another subject is not small talk.
"""

import re
from collections.abc import Iterable
from functools import cache

_MAX_CHARS = 200
_MAX_TOPIC_WORDS = 6
_APOSTROPHES = str.maketrans("", "", "'\N{RIGHT SINGLE QUOTATION MARK}")
_WORD = re.compile(r"[^\W_]+[+#]*")  # C++ and C# are words
_SOCIAL = """
hi; hii; hello; hey; heya; hiya; howdy; yo; greetings; salut; hallo; good morning; good afternoon; good evening; good day;
good night; morning; evening; welcome; welcome back; nice to meet you; pleased to meet you; how are you; how are you doing;
how are you today; hows it going; how is it going; how do you do; whats up; what is up; sup; how have you been; long time no see;
there; everyone; everybody; all; folks; team; friend; bot; octet; assistant; again; today;
thanks; thank you; thx; ty; cheers; much appreciated; i appreciate it; appreciate it; many thanks; a lot; a bunch; a million;
so much; very much; for your help; for the help; for your time; for that; for everything; for the answer; for the explanation;
youre great; you are great; youre the best; you are the best; youre awesome; you are awesome; you rock; good job; great job;
well done; nice work; good work; that helped; that helps; that was helpful; very helpful; that worked; it works; it works now;
it worked; perfect; great; awesome; nice; cool; excellent; amazing; wonderful; brilliant; lovely; sweet; good; fine;
bye; bye bye; goodbye; good bye; see you; see you later; see ya; cya; later; talk to you later; have a nice day; have a good day;
have a great day; take care; until next time; thats all; that is all; im done; i am done; thats it; nothing else; for now; have a good one;
ok; okay; okey; k; yes; yeah; yep; yup; no; nope; sure; alright; all right; right; got it; i see; i understand; understood; makes sense;
that makes sense; never mind; nevermind; no problem; no worries; sorry; my bad; oops; please; lol; haha; hmm; hm; well; so; oh; ah; wow;
who are you; what are you; whats your name; what is your name; who made you; who built you; are you a bot; are you a human;
are you human; are you an ai; are you a robot; are you real; are you there; anyone there; is anyone there; anybody there; is anybody there;
anybody here; anyone here; you there; can you hear me; are you working; what can you do; what do you do; what can you do for me;
how do you work; how does this work; what is this; what can i ask you; what can i ask; what can you help me with; what can you help with;
what do you know; tell me about yourself; introduce yourself; im back; i am back; im new here; i am new here; just testing; testing; test
"""
_OPENINGS = """
can you help; can you help me; could you help; could you help me; can you please help; can you please help me; could you please help me;
would you help me; will you help me; please help; please help me; help; help me; i need help; i need some help; i need your help;
i could use some help; i would like some help; id like some help; looking for help; i have a question; i have some questions;
i have a quick question; quick question; i got a question; i have a problem; i have an issue; i have a; i have an; i have some;
can i ask a question; can i ask you a question; can i ask you something; can i ask something; may i ask a question; may i ask you something;
may i ask; can i ask; i want to ask; i want to ask something; i want to ask you something; id like to ask something; i am stuck; im stuck; i am lost; im lost;
do you know; do you speak; do you understand; do you do; are you good at; are you able to help; are you able to help me;
lets talk; can we talk; i want to talk; lets start; lets get started; lets begin; can we start; where do i start; where should i start;
i want to learn; i would like to learn; id like to learn; i am learning; im learning; i am new to; im new to; i am a beginner; im a beginner;
can you teach me; could you teach me; teach me; i am working on; im working on; i am trying to learn; im trying to learn; question
"""
_FILLER = frozenset(
    "a an the my our some something anything this that it one with about on in at for of to and or me you your question questions "
    "problem problems issue issues error errors bug code coding program programs programming project task tasks stuff bit "
    "little quick small basics now here today tonight please maybe really urgently".split()
)


def _phrases(text: str) -> dict[tuple[str, ...], None]:
    return {tuple(phrase.split()): None for phrase in text.split(";")}


_SOCIAL_PHRASES, _OPENING_PHRASES = _phrases(_SOCIAL), _phrases(_OPENINGS)
_LONGEST = max(map(len, (*_SOCIAL_PHRASES, *_OPENING_PHRASES)))


def is_small_talk(text: str, topics: frozenset[str]) -> bool:
    """Whether the text consists of social phrases; or opens a conversation and names, at most, some of the `topics`."""
    if len(text) > _MAX_CHARS:
        return False
    words, opens, rest = find_words(text), False, list[str]()
    at = 0
    while at < len(words):
        for size in range(min(_LONGEST, len(words) - at), 0, -1):
            phrase = tuple(words[at : at + size])
            if phrase in _SOCIAL_PHRASES or phrase in _OPENING_PHRASES:
                opens = opens or phrase in _OPENING_PHRASES
                break
        else:
            size = 1
            rest.append(words[at])
        at += size
    if not rest:
        return bool(words)
    return opens and len(rest) <= _MAX_TOPIC_WORDS and all(word in _FILLER or word in topics for word in rest)


def find_words(text: str) -> list[str]:
    return _WORD.findall(text.casefold().translate(_APOSTROPHES))
