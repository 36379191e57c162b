"""Which language a text is in: by its script, and where languages share one by the words and letters of each.

Enough to tell an answer in the wanted language from one in another; no judge of dialects or of single words.
"""

import re
import unicodedata
from collections import Counter

# A range of code points for each script: (first, last, name).
_RANGES = (
    (0x0041, 0x024F, "latin"),
    (0x1E00, 0x1EFF, "latin"),
    (0x0370, 0x03FF, "greek"),
    (0x0400, 0x052F, "cyrillic"),
    (0x0590, 0x05FF, "hebrew"),
    (0x0600, 0x077F, "arabic"),
    (0xFB50, 0xFDFF, "arabic"),
    (0x0900, 0x097F, "devanagari"),
    (0x0980, 0x09FF, "bengali"),
    (0x0A00, 0x0A7F, "gurmukhi"),
    (0x0A80, 0x0AFF, "gujarati"),
    (0x0B80, 0x0BFF, "tamil"),
    (0x0C00, 0x0C7F, "telugu"),
    (0x0C80, 0x0CFF, "kannada"),
    (0x0D00, 0x0D7F, "malayalam"),
    (0x0E00, 0x0E7F, "thai"),
    (0x3040, 0x30FF, "kana"),
    (0x4E00, 0x9FFF, "han"),
    (0xAC00, 0xD7AF, "hangul"),
)
_ALONE = {
    "greek": "el",
    "hebrew": "he",
    "bengali": "bn",
    "gurmukhi": "pa",
    "gujarati": "gu",
    "tamil": "ta",
    "telugu": "te",
    "kannada": "kn",
    "malayalam": "ml",
    "thai": "th",
    "kana": "ja",
    "han": "zh",
    "hangul": "ko",
}
"""Scripts that we take for one language each."""
_WORDS = {
    "latin": {
        "en": "the of and to in is that it for was with as you this are be on have not they from by at what your we can will",
        "de": "der die und das ist nicht ein eine zu den von mit auf für sie ich es dem des im auch sich wir werden oder wie",
        "fr": "le la les des et est une un du que pour dans qui sur pas au avec ce sont il elle nous vous plus ou par aux",
        "it": "il di che la e per un una sono non del della con le si da come più gli nel anche alla questo ma i dei delle",
        "pt": "o a de que e do da em um uma para não com os as no na por mais se dos das como ao você são mas ou é seu",
        "es": "el la de que y en los las un una por con para no es se del al lo como más su pero sus está son o muy ya",
        "nl": "de het een en van is dat niet op te met voor zijn aan er maar om ook als bij ze naar wordt door uit deze",
        "sv": "och att det som en är på för av med den till inte ett om har de jag så kan man vi från eller ska också",
        "fi": "ja on ei se että oli hän mutta ovat tai kun joka myös niin kuin mitä tämä sen voi olla hänen minä ole jos",
        "sw": "na ya wa kwa ni katika za la kuwa hii yake cha kama au hiyo lakini pia watu sana huo kila bila wake vya nchini",
        "vi": "và của là có được cho không trong một các với những người để này khi đã từ như ở về đến tôi bạn nhiều",
    },
    "devanagari": {
        "hi": "है और के में की का से को हैं यह पर नहीं एक कि भी लिए ने था थी हो आप करने इस मैं अपने तो जो",
        "mr": "आहे आणि च्या मध्ये आहेत हे ही नाही एक या तो ती त्या साठी मी होते होता करण्यासाठी आपण असे काही त्यांच्या खूप आम्ही",
        "ne": "छ र को मा छन् हो यो लागि पनि गर्न हुन् भएको छैन हामी उनी थियो तर गरेको म तपाईं त्यो हुन्छ धेरै गर्नुहोस्",
    },
    "cyrillic": {
        "ru": "и в не на что я с он как это по но они мы все она так его за был от вы из для же когда только или ещё быть",
        "bg": "и на да се в е за от не са с че по ще като това той със ни но към са или беше много може аз във съм",
        "uk": "і в не на що я з він як це по але вони ми всі вона так його за був від ви для же коли та або є ще бути",
    },
    "arabic": {
        "ar": "في من على إلى أن هذا التي عن مع هذه كان لا ما هو الذي هي أو لم قد بين كل بعد ذلك كما عند إن و",
        "fa": "و در به از که این را با است برای آن یک می های تا شود بر شما هم ما یا من کرد اما باید خود",
        "ur": "کے کی میں ہے اور سے کا کو ہیں یہ نے پر ہم کہ اس ایک نہیں آپ بھی تھا کر ہو لیے جو وہ تو",
    },
}
_LETTERS = {
    "de": "äöüß",
    "fr": "çœèêùû",
    "it": "ìòù",
    "pt": "ãõç",
    "es": "ñ¿¡",
    "sv": "å",
    "fi": "äö",
    "vi": "đơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ",
    "ru": "ыэё",
    "bg": "ъ",
    "uk": "іїєґ",
    "mr": "ळ",
    "fa": "پچژگی",
    "ur": "ٹڈڑںےہھ",
    "ar": "ةىإأي",
}
"""That tell a language from others of its script."""
_FUNCTION_WORDS = {script: {code: frozenset(words.split()) for code, words in each.items()} for script, each in _WORDS.items()}
LANGUAGES = frozenset(_ALONE.values()) | {code for each in _WORDS.values() for code in each}
"""ISO 639-1 codes of those that are told apart."""


def language_of(text: str) -> str:
    """Its code, or empty where nothing speaks for one: no letters, or none of the words that are looked for."""
    scripts = Counter(script for char in text if (script := _script_of(char)))
    if not scripts:
        return ""
    if scripts["kana"] * 10 >= scripts["kana"] + scripts["han"] > 0:
        scripts["kana"] += scripts.pop("han", 0)  # Japanese is written in both
    script = max(scripts, key=lambda each: scripts[each])
    return _ALONE.get(script) or _by_words(unicodedata.normalize("NFC", text).lower(), _FUNCTION_WORDS[script])


def _script_of(char: str) -> str:
    if not (char.isalpha() or unicodedata.category(char) in ("Mn", "Mc")):
        return ""
    point = ord(char)
    return next((name for first, last, name in _RANGES if first <= point <= last), "")


def _by_words(text: str, candidates: dict[str, frozenset[str]]) -> str:
    words = Counter(word.strip(".,;:!?\"'()[]«»“”„।۔،؟*#-–—") for word in re.split(r"\s+", text))
    total = sum(words.values())
    found = {
        code: sum(words[word] for word in known) / total
        + sum(text.count(letter) for letter in _LETTERS.get(code, "")) / max(1, len(text))
        for code, known in candidates.items()
    }
    best = max(found, key=lambda code: found[code])
    return best if found[best] > 0 else ""
