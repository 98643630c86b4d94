"""Makes tokenizer_demo.json: strings and the ids that HF tokenizers gives for the demo model.

    python make_golden_tokenizer.py --model ../../models/demo

The strings aim at what byte-level BPE readers get wrong: the word pattern at contractions, runs of
spaces and Unicode classes, characters of several bytes, and the special token inside text.

Requires tokenizers==0.23.3.
"""

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent

TEXTS = [
    "",
    " ",
    "a",
    "\n",
    "Hello, world!",
    "Mr. Speaker, Mr. President, and distinguished Members of the House and Senate,",
    "The state of our Union is strong--and it is growing stronger.",
    "   three spaces before, three after   ",
    "words   with  runs    of spaces",
    "trailing space ",
    "tab\tseparated\t\tvalues",
    "line one\nline two\n\nline four\n\n\n",
    "windows\r\nline\r\nends\r\n",
    " \n \n\t \n",
    "I'm sure they're here; we've seen it, she'd know, it's what he'll do, can't isn't.",
    "I'M THEY'RE WE'VE SHE'D IT'S HE'LL",
    "'s 's's ''s 'tis rock'n'roll students' \u2019s it\u2019s",
    "0 1 12 123 1234 12345 3.14159 1,000,000 $4.5 billion 1992-1993 50%",
    "x1y22z333 2nd 21st-Century 4x4",
    "int main() { return a[i] != b->c ? x << 2 : ~y; }  // done",
    "def f(x):\n    if x is None:\n        return {'k': [1, 2]}\n\treturn x\n",
    "https://example.org/path?q=1&r=two#part me@example.org",
    '{"key": "value", "n": [1, -2.5e-3, null, true]}',
    "!!!??? ... --- *** ((())) \\ / | @#$%^&*_+=~`",
    "caf\u00e9 na\u00efve \u00fcber se\u00f1or \u00c5ngstr\u00f6m",
    "cafe\u0301 with a combining accent",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f \u00b7 \uc548\ub155\ud558\uc138\uc694",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600 \U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1fa\U0001f1f8",
    "digits of other scripts: \u0661\u0662\u0663 \u0967\u0968\u0969 \u00bd \u2163 \u00b2",
    "non-breaking\u00a0space, em\u2003space, ideographic\u3000space, zero\u200bwidth, next\u0085line",
    "\u201ccurly quotes\u201d \u2018single\u2019 \u2014 dash \u2026 ellipsis \u20ac \u2122",
    "control \x00 \x01 \x1b[0m \x7f bytes",
    "\ufeffbyte order mark and \ufffd replacement",
    "<|endoftext|>",
    "<|endoftext|>My fellow Americans,<|endoftext|> <|endoftext|>\n",
    "not special: <|endoftext| > <|END|> |endoftext|>",
    "supercalifragilisticexpialidocious antidisestablishmentarianism " + "z" * 40,
    "Thank you, God bless you, and God bless the United States of America.\n\nMy fellow citizens:",
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="directory with tokenizer.json")
    arguments = parser.parse_args()
    assert len(set(TEXTS)) == 40

    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    lines = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text, repr(text)
        # Escaped to ASCII, so that no editor changes what the file says.
        lines.append(
            f'{{"text": {json.dumps(text)}, "ids": {json.dumps(ids, separators=(",", ":"))}}}'
        )
    content = '{"cases": [\n' + ",\n".join(lines) + "\n]}\n"
    (HERE / "tokenizer_demo.json").write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
