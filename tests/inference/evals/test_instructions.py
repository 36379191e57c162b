# ruff: noqa: E501  a case a line
"""Each instruction: an answer that follows it, and one that does not."""

from typing import Any

import pytest

from inference.evals.instructions import INSTRUCTIONS, instruction_with
from inference.evals.languages import LANGUAGES, language_of

AT_LEAST, LESS, JA_LEAST, JA_LESS = "at least", "less than", "以上", "未満"

# (id, arguments, follows, does not)
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("en:change_case:capital_word_frequency", {"capital_relation": AT_LEAST, "capital_frequency": 2}, "NOW or NEVER", "NOW or never"),
    ("en:change_case:capital_word_frequency", {"capital_relation": LESS, "capital_frequency": 2}, "NOW or never", "NOW or NEVER"),
    ("en:change_case:english_capital", {}, "THIS IS THE WAY", "This is the way"),
    ("en:change_case:english_lowercase", {}, "this is the way, 7", "this is the Way"),
    ("en:combination:repeat_prompt", {"prompt_to_repeat": "Write a haiku. "}, "Write a haiku.\nLeaves fall", "Sure! Write a haiku."),
    ("en:combination:two_responses", {}, "One\n******\nTwo", "One\n******\nOne"),
    ("en:combination:two_responses", {}, "******One******Two******", "One******Two******Three"),
    ("en:combination:two_responses", {}, "One******Two", "One****** ******Two"),
    ("en:detectable_content:number_placeholders", {"num_placeholders": 2}, "[name], [address of the house]", "[name], [], ["),
    ("en:detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP. P. S. one more", "Bye.\nP.S. one more"),
    ("en:detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\np.s. one more", "Bye. Postscript: one"),
    ("en:detectable_format:constrained_response", {}, "Well: My answer is no.", "No"),
    ("en:detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{'a': 1}"),
    ("en:detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 2}, "SECTION 1\na\nSECTION 2\nb", "SECTION 1\nthe next section"),
    ("en:detectable_format:number_bullet_lists", {"num_bullets": 2}, "So:\n* one\n- two", "* one\n* two\n* three"),
    ("en:detectable_format:number_bullet_lists", {"num_bullets": 1}, "**bold** first\n* one\n---", "**bold**\n***"),
    ("en:detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* and **two**", "*one* and * * and **"),
    ("en:detectable_format:title", {}, "<<Ode to joy>>\nO friends", "<< >>\nO friends"),
    ("en:keywords:existence", {"keywords": ["mom", "Mother"]}, "Mom is a mother", "mom is here"),
    ("en:keywords:forbidden_words", {"forbidden_words": ["rock"]}, "rocket science", "a Rock!"),
    ("en:keywords:frequency", {"keyword": "war", "relation": AT_LEAST, "frequency": 2}, "War and war", "war"),
    ("en:keywords:frequency", {"keyword": "war", "relation": LESS, "frequency": 2}, "war", "War and war"),
    ("en:keywords:letter_frequency", {"letter": "#", "let_relation": AT_LEAST, "let_frequency": 2}, "#a #b", "#a"),
    ("en:language:response_language", {"language": "de"}, "Das ist ein Haus, und es ist nicht groß.", "This is a house and it is small."),
    ("en:length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"}, "Hi.\n\n\"Weekend plans\"?", "Hi.\n\nA weekend"),
    ("en:length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "a"}, "A b\n\nC", "A b\n\nC\n\nD"),
    ("en:length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One.\n***\nTwo.", "One.\n\nTwo."),
    ("en:length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***\nOne.\n***\nTwo.\n***", "One.\n***\n***\nTwo."),
    ("en:length_constraints:number_sentences", {"relation": AT_LEAST, "num_sentences": 3}, "Dr. Who came. He saw! Did he win?", "Dr. Who came at 4 p.m. to the U.S. embassy"),
    ("en:length_constraints:number_sentences", {"relation": LESS, "num_sentences": 3}, "1. One...\n2. \"Two.\"", "One. Two. Three."),
    ("en:length_constraints:number_words", {"relation": AT_LEAST, "num_words": 3}, "It isn't well-known", "Not known"),
    ("en:punctuation:no_comma", {}, "One and two", "One, two"),
    ("en:startend:end_checker", {"end_phrase": "Peace!"}, 'Go in peace. "PEACE!"', "Peace! Bye"),
    ("en:startend:quotation", {}, ' "Hello there." ', '"Hello" there'),
    ("ja:combination:repeat_prompt", {"prompt_to_repeat": "説明してください。"}, "説明してください。はい", "はい"),
    ("ja:combination:two_responses", {}, "一つ\n******\n二つ", "一つだけ"),
    ("ja:detectable_content:number_placeholders", {"num_placeholders": 1}, "[名前]様", "名前様"),
    ("ja:detectable_content:postscript", {"postscript_marker": "追伸"}, "さようなら。\n追伸 元気で", "さようなら。"),
    ("ja:detectable_format:constrained_response", {}, "いいえ、違います。", "いいえ"),
    ("ja:detectable_format:json_format", {}, '{"名": 1}', "名: 1"),
    ("ja:detectable_format:multiple_sections", {"section_spliter": "章", "num_sections": 2}, "第1章\nあ\n第２章\nい", "第1章 この文章"),
    ("ja:detectable_format:nominal_ending", {"count": 2}, "これが東京。あれはタワー。", "これが東京。きれいです。"),
    ("ja:detectable_format:number_bullet_lists", {"num_bullets": 2}, "・あ\n・い", "・あ・い"),
    ("ja:detectable_format:number_highlighted_sections", {"num_highlights": 2}, "《あ》と《い》", "《あ》と《》"),
    ("ja:detectable_format:number_numbered_lists", {"num_items": 2}, "1. あ\n2. い", "1. あ\n2.5 い"),
    ("ja:detectable_format:title", {}, "『昭和の巨人』", "『　』"),
    ("ja:keywords:existence", {"keywords": ["夢", "現実"]}, "夢と現実", "夢"),
    ("ja:keywords:forbidden_words", {"forbidden_words": ["雨"]}, "晴れ", "大雨"),
    ("ja:keywords:frequency", {"keyword": "音", "relation": JA_LEAST, "frequency": 2}, "音と音", "音"),
    ("ja:keywords:letter_frequency", {"letter": "か", "let_relation": JA_LESS, "let_frequency": 2}, "か", "かか"),
    ("ja:language:response_language", {"language": "th"}, "สวัสดีครับ ผมชื่อ", "こんにちは"),
    ("ja:length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "首"}, "はい。\n\n首が長い", "はい。\n\n長い首"),
    ("ja:length_constraints:number_letters", {"relation": JA_LESS, "num_letters": 4}, "あ い\nう", "ありがと"),
    ("ja:length_constraints:number_paragraphs", {"num_paragraphs": 2}, "あ\n***\nい", "あ"),
    ("ja:length_constraints:number_sentences", {"relation": JA_LEAST, "num_sentences": 2}, "はい。「いいえ。」", "はい。"),
    ("ja:letters:furigana", {}, "漢字（かんじ）を書（か）く", "漢字（かんじ）を書く"),
    ("ja:letters:hiragana_only", {}, "みずは、たいせつ。1ばん", "水はたいせつ"),
    ("ja:letters:kanji", {"relation": JA_LEAST, "kanji_limit": 3}, "東京都", "東京と"),
    ("ja:letters:kansuuji", {}, "二〇二三年", "2023年"),
    ("ja:letters:katakana_only", {}, "コーヒー、ダイスキ。", "コーヒーが"),
    ("ja:letters:no_hiragana", {}, "東京タワー", "東京の"),
    ("ja:letters:no_katakana", {}, "東京のらーめん", "東京ラーメン"),
    ("ja:punctuation:no_comma", {}, "はい。いいえ", "はい、いいえ"),
    ("ja:punctuation:no_period", {}, "はい！", "はい。"),
    ("ja:startend:end_checker", {"end_phrase": "ございますか。"}, "他にご質問はございますか。", "ございますか。はい"),
    ("ja:startend:quotation", {}, "「はい」", "はい「」"),
    ("ja:startend:sentence_unified_end", {"ending": "です"}, "春です。夏です！", "春です。夏だ。"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "follows", "does_not"), CASES)
def test_an_answer_follows_or_does_not(name: str, arguments: dict[str, Any], follows: str, does_not: str) -> None:
    instruction, given = instruction_with(name, arguments)
    assert instruction.check(follows, **given)
    assert not instruction.check(does_not, **given)


def test_every_instruction_is_tried() -> None:
    assert set(INSTRUCTIONS) == {name for name, *_ in CASES}


@pytest.mark.parametrize("name", sorted(INSTRUCTIONS))
def test_long_answers_of_one_sign_end(name: str) -> None:
    """Counted by what they return: a check whose time were quadratic would take hours on these."""
    arguments = next(given for each, given, *_ in CASES if each == name)
    instruction, given = instruction_with(name, arguments)
    for text in (
        "*" * 50_000 + "x",
        "." * 50_000 + "x",
        "漢" * 50_000,
        "\n" * 50_000 + "x",
        "[" * 50_000,
        "a-" * 25_000,
        "P" * 50_000,
    ):
        assert instruction.check(text, **given) in (True, False)


TEXTS = {
    "en": "What is the best way to do that? You are not alone with it.",
    "de": "Was ist der beste Weg? Sie sind nicht allein mit der Frage.",
    "fr": "Quelle est la meilleure façon de faire ? Vous n'êtes pas seul dans le monde.",
    "it": "Qual è il modo migliore di farlo? Non sono solo con la domanda che si fa.",
    "pt": "Qual é a melhor maneira de fazer? Você não está só, e os seus amigos também não.",
    "es": "¿Cuál es la mejor manera de hacerlo? No estás solo y los amigos del barrio están con él.",
    "nl": "Wat is de beste manier om het te doen? Dat is niet van een ander, en ze zijn er ook voor.",
    "sv": "Vad är det bästa sättet att göra det på? Jag är inte ensam och han kan också vara med.",
    "fi": "Mikä on paras tapa? Se ei ole vaikeaa, mutta hän on yksin ja he ovat siellä.",
    "sw": "Njia bora ya kufanya hivyo ni ipi? Watu wa nchi hii wako pamoja na serikali yake.",
    "vi": "Cách tốt nhất là gì? Tôi không biết, nhưng bạn có thể làm được với những người khác.",
    "ru": "Как это лучше сделать? Он не знает, что она была одна, и вы тоже.",
    "bg": "Как е най-добре да се направи? Той не знае, че тя беше сама, и това са нещата, които ще видим.",
    "uk": "Як це краще зробити? Він не знає, що вона була одна, і ви також її бачили.",
    "ar": "ما هو أفضل طريقة إلى ذلك؟ هذا من الأشياء التي كان لا يعرفها في المدينة.",
    "fa": "بهترین راه برای این کار چیست؟ او نمی داند که آن را از کجا پیدا کند و با ما است.",
    "ur": "اس کا بہترین طریقہ کیا ہے؟ وہ نہیں جانتے کہ یہ ان کے لیے اور ہم سے ہیں۔",
    "hi": "इसे करने का सबसे अच्छा तरीका क्या है? वह नहीं जानता कि यह उनके लिए और हम से हैं।",
    "mr": "हे करण्याचा सर्वोत्तम मार्ग कोणता आहे? तो एक मुलगा आहे आणि ती माझी बहीण नाही, ते आहेत.",
    "ne": "यो गर्ने सबैभन्दा राम्रो तरिका के हो? उनी एक्लो छन् र हामी पनि त्यहाँ थियौं तर भएको छैन छ।",
    "bn": "এটি করার সবচেয়ে ভালো উপায় কী?",
    "pa": "ਇਹ ਕਰਨ ਦਾ ਸਭ ਤੋਂ ਵਧੀਆ ਤਰੀਕਾ ਕੀ ਹੈ?",
    "gu": "આ કરવાની શ્રેષ્ઠ રીત કઈ છે?",
    "ta": "இதைச் செய்ய சிறந்த வழி எது?",
    "te": "దీన్ని చేయడానికి ఉత్తమ మార్గం ఏమిటి?",
    "kn": "ಇದನ್ನು ಮಾಡಲು ಉತ್ತಮ ಮಾರ್ಗ ಯಾವುದು?",
    "ml": "ഇത് ചെയ്യാനുള്ള ഏറ്റവും നല്ല മാർഗം എന്താണ്?",
    "th": "วิธีที่ดีที่สุดในการทำเช่นนั้นคืออะไร",
    "ko": "그것을 하는 가장 좋은 방법은 무엇입니까?",
    "ja": "最善の方法は何ですか。東京都渋谷区",
    "zh": "最好的方法是什么？",
    "el": "Ποιος είναι ο καλύτερος τρόπος;",
    "he": "מהי הדרך הטובה ביותר לעשות זאת?",
}


@pytest.mark.parametrize("code", sorted(LANGUAGES))
def test_a_language_is_told_from_the_others(code: str) -> None:
    assert language_of(TEXTS[code]) == code


def test_what_is_no_language_is_none() -> None:
    assert language_of("12 + 3 = 15!") == ""
    assert language_of("") == ""
