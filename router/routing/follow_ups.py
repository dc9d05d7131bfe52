"""Tells a follow-up, which means nothing without the earlier turns, from a turn that names a subject of its own."""

import re
from collections.abc import Collection, Sequence

from router.routing.normal_text import fold_unicode

MAX_FOLLOW_UP_CHARS = 400
_MAX_CONTENT = 2  # words of content that a follow-up may have if it refers to what was said before
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?(?:\+\+|#)?|::|_")
_CODE = re.compile(r"[;{}=<>]|\w\(")
_APOSTROPHE = str.maketrans({"\N{RIGHT SINGLE QUOTATION MARK}": "'"})
_LETTERS = re.compile(r"[^\W\d_]+")
_LATIN_END = "\u024f"  # the last Latin letter
_IDEOGRAPH = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
_HIRAGANA = re.compile("[\u3040-\u309f]+")  # mostly grammar, as a subject is written in Kanji or Katakana
_FEW_LETTERS, _FEW_IDEOGRAPHS = 12, 6  # a turn without Latin words that is as short is a follow-up


def _read_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REFERENCES = _read_words(
    """
it its that this these those them they he she one ones same above previous former latter your yours you said again
instead too also else both either other another last first second third way ways here there then and or but so still
yet even only just neither
"""
)
_FILLER = _read_words(
    """
a an the i i'm i've i'd me my mine we we're our us is are was were be been being am do does did doing done don't
doesn't didn't isn't aren't wasn't can can't cannot could couldn't would wouldn't should shouldn't will won't may
might must have has had having get gets got getting give gives go goes going gone make makes made making take takes
took put let lets let's want wants wanted need needs needed like likes liked know knows think thinks thought mean
means meant see sees saw look looks looking try tries tried trying use uses used using work works worked working
help helps helped please thanks thank ok okay yes yeah yep yup no nope not never none nothing anything something
everything someone what what's which when where why how how's if because since while until before after with without
within for from to of in on at by as into onto over under about around between than through during out off up down
back away very really quite rather pretty much many more most less least few fewer little lot lots bit some any all
each every several two three four five ten hmm hm oh ah well sure right wrong good better best bad worse worst fine
great nice perfect cool wow sorry maybe perhaps probably actually exactly simply simple simpler simplest easy easier
hard harder clear clearer short shorter long longer brief briefly detail details detailed step steps explain
explains explained explanation example examples sample show shows shown tell say says write rewrite rewritten repeat
summarise summarize summary continue elaborate expand describe add added remove removed change changed changes
replace fix fixed keep leave left skip introduction answer answers answered question questions code line lines part
parts point points idea ideas reason reasons case cases thing things stuff version versions option options
alternative alternatives approach approaches solution solutions result results output problem problems issue issues
difference possible impossible necessary important useful recommend recommended suggest suggestion safe safer
careful wise correct correctly proper properly complete full whole entire own new old now today later next time
times happen happens happened understand understood follow sense makes believe seems seem seen works compile
compiles compiled run runs running faster slower larger smaller bigger project projects people team real world
practice general generally std :: comment comments wait stop start begin end ready sounds agree disagree interesting
curious wonder wondering rest
"""
)


_LANGUAGES = tuple(
    _read_words(text)
    for text in (
        """
да нет ок хорошо спасибо пожалуйста а и но или то не еще раз же ли бы что как почему зачем когда где какой какая какие
это этот эта эти этого этом этому этим тот та те того так такой там тут здесь он она оно они его ее их мне меня ты вы
мы я можешь можете можно могу нужно надо если в на с со для из к о об от по за до у без при чем тогда теперь снова
опять тоже также только просто очень все другой другая другое другие другим второй вторую второе вторая первый первую
первое первая последний последнюю последнее часть способ способом вариант варианты пример примеры примером код ответ
вопрос шаг шагам строка строке покажи покажите показать объясни объясните объяснить поясни поясните пояснить расскажи
расскажите подробнее подробно проще короче кратко понятнее повтори повторите перепиши перепишите продолжай продолжи
дальше сделай сделайте сделать один одну одно пару другому добавь добавьте исправь исправьте напиши напишите убери
уберите измени лучше хуже быстрее медленнее безопасно правильно неправильно понял поняла понятно непонятно понимаю
работает сработало помогло получается получилось точно уверен значит имеешь имеете виду думаешь думаете есть будет
было был может быть
""",
        """
ja nein ok okay danke bitte und aber oder warum wieso weshalb wie was wer wo wann welche welcher welches welchen das
dies diese dieser dieses dem den der die ein eine einen einem einer es sie er ich du ihr wir mir mich dir dich kannst
könntest können könnten kann könnte soll sollte muss ist sind war wäre wird geht gibt hast hat habe haben mach mache
machen noch mal nochmal einmal wieder genauer genau erklären erklär erkläre erklärst beispiel beispiele zeig zeige
zeigen zeigst kürzer kurz länger einfacher einfach ausführlicher mehr weniger besser schneller langsamer sicher anders
andere anderen anderer zweite zweiten erste ersten letzte letzten teil schritt schritte zeile antwort frage code dazu
davon damit daran dafür darüber nicht kein keine auch nur so auf an in mit für von zu zum zur im am bei aus als wenn
dann also doch denn da hier jetzt verstehe verstanden funktioniert klappt stimmt gut weiter schreib schreibe bedeutet
heißt meinst sich sehr alles etwas möglich
""",
        """
oui non ok merci et mais ou pourquoi comment quoi que qu qui quand où quel quelle quels quelles c ce ça cela cet cette
ces est sont était le la les l un une des du de d en y il elle on je j tu vous nous me m moi te t peux peut pouvez
pourrais pourriez dois faut faire fais fait faites montre montrer montrez donne donner donnez explique expliquer
expliquez exemple exemples plus moins détail détails court courte simple simplement mieux encore fois autre autres
deuxième seconde première premier dernier dernière partie étape étapes ligne réponse question code s plait plaît svp
avec sans pour dans sur par à au aux si alors donc pas ne n comprends compris marche fonctionne bien continue continuez
réécris répète sûr possible veux dire signifie même aussi très tout façon manière
""",
        """
sí si no vale ok gracias y pero o por qué porque cómo como cuál cuáles cuando cuándo dónde que eso esto esa ese esta
este es son era está el la los las lo un una de del al a en con sin para puedes puede podrías podría debería debo hay
hacer haz hace muestra muéstrame mostrar mostrarme dame dar explica explicar explicarme explícame explicarlo ejemplo
ejemplos más menos detalle detalles corto corta breve simple sencillo mejor otra otro vez segundo segunda primera
primero última último parte paso pasos línea respuesta pregunta código favor me te se le tú usted yo entiendo entendí
funciona bien continúa sigue reescribe repite seguro posible quiere quieres decir significa también muy todo forma
manera así entonces
""",
        """
sim não ok obrigado obrigada e mas ou por que porque quê como qual quais quando onde isso isto aquilo essa esse esta
este é são era está o a os as um uma de do da dos das no na em com sem para pode poderia podes você tu eu me mim te se
deve há fazer faça faz mostre mostra mostrar dê dar explique explica explicar exemplo exemplos mais menos detalhe
detalhes curto curta breve simples melhor outra outro vez segundo segunda primeira primeiro última último parte passo
passos linha resposta pergunta código favor entendo entendi funciona bem continue reescreva repita seguro possível quer
dizer significa também muito tudo forma maneira assim então
""",
    )
)
"""Words of Russian, German, French, Spanish and Portuguese that name no subject of their own."""
_IDEOGRAPH_PHRASES = re.compile(
    "|".join(
        sorted(
            _read_words(
                """
请 谢谢 你 您 我 能 不能 可以 再 给 个 一个 举 例子 示例 代码 解释 说明 详细 一下 一点 一些 更
简单 简短 短 为什么 怎么 怎样 如何 什么 意思 这 那 样 它 第一 第二 第三 部分 步 方法 种 另外
其他 别的 呢 吗 吧 啊 的 了 是 不 没 有 好 对 继续 接着 重写 重新 写 改 回答 答案 问题 明白
懂 理解 还 也 就 那么 如果 多 少 会 要 想 需要 做 看 说 讲 行 安全 推荐 哪 里 上面 刚才 之前
然后 所以 但是 和 或者 都 很 最 比较 试 一样 起作用 得 例 例文 説明 詳 詳細 簡単 方法 他 別
質問 回答 答 コード サンプル 意味 理由 何 願 教 見 書 直 続 二番目 最初 最後 次 前 今 場合 使
言 思 同 必要 違 分
"""
            ),
            key=lambda phrase: (-len(phrase), phrase),
        )
    )
)
"""Phrases of Chinese and Japanese that name no subject of their own, the longest first."""


def is_follow_up(text: str) -> bool:
    """Whether the text names no subject, or refers to what was said before and names at most a detail."""
    if len(text) > MAX_FOLLOW_UP_CHARS:
        return False
    text = fold_unicode(text)
    if "\n" in text.strip() and _CODE.search(text):
        return False
    words = _WORD.findall(text.translate(_APOSTROPHE).casefold())
    runs = _LETTERS.findall(text.casefold().replace("\u0451", "\u0435"))
    others = [run for run in runs if run[0] > _LATIN_END]
    if 2 * len("".join(others)) > len("".join(runs)):
        return _is_other_follow_up(others, {run for run in runs if run[0] <= _LATIN_END})
    if any(known.issuperset(runs) for known in _LANGUAGES):
        return True
    content = [word for word in words if word not in _FILLER and word not in _REFERENCES and not word.isdigit()]
    is_referring = not _REFERENCES.isdisjoint(words) or words[1:2] == ["about"]  # "what about", "how about"
    return not content or (len(content) <= _MAX_CONTENT and is_referring)


def _is_other_follow_up(others: Sequence[str], latin: Collection[str]) -> bool:
    """Whether a turn with these runs of letters of another script, and these Latin words, is a follow-up."""
    if not _FILLER.difference(("std",)).issuperset(latin):
        return False
    together = "".join(others)
    if _IDEOGRAPH.search(together):
        return len(together) <= _FEW_IDEOGRAPHS or not _IDEOGRAPH_PHRASES.sub("", _HIRAGANA.sub("", together))
    return len(together) <= _FEW_LETTERS or any(known.issuperset(others) for known in _LANGUAGES)
