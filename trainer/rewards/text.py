"""Text in pictures: what the prompt quotes is read back by PP-OCR, from the models that the wheel of `rapidocr` brings."""

from __future__ import annotations

import functools
import html
import importlib.util
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL.Image import Image
from torch import Tensor

from ...host import extras
from ..networks import RewardError
from ..networks.preprocess import pil
from ..types import metadata_of
from .base import Reward

# --- reading ----------------------------------------------------------------------------------------------------------

INSTALL = f"Fix: {extras.command('-U', *extras.EXTRAS['ocr'])}"
MODELS = {"Det": "PP-OCRv6_det_small.onnx", "Rec": "PP-OCRv6_rec_small.onnx"}  # that find lines, and read them


def find_models() -> dict[str, Path]:
    """Where the installed package has its models.

    Raises:
        MissingPackage: a package is missing.
        FileNotFoundError: a model is; it says how to install them.
    """
    extras.check("Reward: Text", "ocr")
    specification = importlib.util.find_spec("rapidocr")
    assert specification and specification.origin
    folder = Path(specification.origin).parent / "models"
    for name in MODELS.values():
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"the installed rapidocr has no {name} in {folder}: its version brings other models. {INSTALL}"
            )
    return {stage: folder / name for stage, name in MODELS.items()}


class Reader:
    """PP-OCR on the CPU."""

    def __init__(self):
        models = find_models()
        try:
            from rapidocr import RapidOCR
        except (ImportError, OSError) as error:  # as where OpenCV lacks a library of the system
            raise RewardError(f"rapidocr is installed but cannot be imported ({error}). {INSTALL}") from error
        settings: dict[str, Any] = {f"{stage}.model_path": str(path) for stage, path in models.items()}
        # Else it would say at every picture without text that there is none. Lines upside down are not turned.
        settings |= {"Global.log_level": "error", "Global.use_cls": False}
        self._ocr: Any = RapidOCR(params=settings)

    def lines(self, picture: Image) -> list[str]:
        """The lines of text in it, from top to bottom; none where it sees no text."""
        return list(self._ocr(picture).txts or ())


@functools.cache
def reader() -> Reader:
    """The one of this process.

    Raises:
        MissingPackage: a package is missing.
        FileNotFoundError: a model is.
        RewardError: the package cannot be imported.
    """
    return Reader()


# Scripts whose words touch each other, or whose particles follow a quote at once: there a letter before a quote says nothing.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3100-\u318f\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"  # Kana, Han, Hangul
)
_LETTER = rf"[^\W{_UNSPACED}]"
# A double quote behind a number is inches (5"); a single one beside letters is an apostrophe (don't, dogs'). A text between two
# marks that are alike begins and ends with a character that is no space.
_QUOTED = (
    r'(?<!\d)["＂](?=\S)([^"＂]+)(?<=\S)["＂]',
    r"(?:[“„‟]|(?<!\d)”)(?=\S)([^“”„‟]+)(?<=\S)[”“]",
    r"«\s*([^«»]+?)\s*»",
    r"»(?=\S)([^«»]+)(?<=\S)[«»]",
    r"‹\s*([^‹›]+?)\s*›",
    r"›(?=\S)([^‹›]+)(?<=\S)[‹›]",
    r"[「｢]\s*([^「」｢｣]+?)\s*[」｣]",
    r"『\s*([^『』]+?)\s*』",
    r"〝\s*([^〝〞〟]+?)\s*[〞〟]",
    r"‚(?=\S)([^‚‘’]+)(?<=\S)[‘’]",
    rf"(?<!{_LETTER})(?<!['’＇])['‘＇](?=\S)((?:[^'‘’＇]|(?<={_LETTER})['’＇](?={_LETTER}))+)(?<=\S)['’＇](?!{_LETTER}|['’＇])",
)
_QUOTES = re.compile("|".join(_QUOTED))
# The marks of a text that was written as JSON twice, or that a page had.
_ESCAPED = re.compile(r"\\+(?=[\"'])|&(?:quot|#34|#x22);|&(?:apos|#39|#x27);")
_PLAIN = str.maketrans("‘’`´“”„", "''''\"\"\"")
_AND = "n"  # as in rock 'n' roll
_TAKEN = "\n"  # stands where a text was taken out; no plain text has it


def quoted(prompt: str) -> list[str]:
    """Returns the texts that a prompt quotes, in their order."""
    text = _ESCAPED.sub(lambda mark: html.unescape(mark[0]).strip("\\"), prompt)
    matches = (next(group for group in match.groups() if group) for match in _QUOTES.finditer(text))
    return [match for match in matches if match.lower() != _AND]


def wanted(prompt: str) -> list[str]:
    """The texts that its picture should have: those of the metadata (`text`, one, or `words`, several), else the quoted ones.

    Raises:
        RewardError: the metadata are not texts.
    """
    metadata = metadata_of(prompt)
    texts = _listed(metadata, prompt) if metadata.keys() & {"text", "words"} else quoted(prompt)
    return [text for text in texts if plain(text)]


def _listed(metadata: Mapping[str, Any], prompt: str) -> list[str]:
    key = "text" if "text" in metadata else "words"
    value = metadata[key]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise RewardError(
            f"the metadata of the prompt {prompt!r} say {key} = {value!r}. Fix: one text, or a list of texts, in its line"
        )
    return list(texts)


def plain(text: str) -> str:
    """Without spaces, in lower case, with plain quotes and apostrophes."""
    return "".join(unicodedata.normalize("NFKC", text.translate(_PLAIN)).split()).lower()


def edit_distance(one: str, other: str) -> int:
    """Levenshtein's: the fewest characters to insert, delete or replace to make one the other."""
    row = list(range(len(other) + 1))
    for above, letter in enumerate(one, 1):
        diagonal, row[0] = row[0], above
        for column, its in enumerate(other, 1):
            diagonal, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, diagonal + (letter != its))
    return row[-1]


def likeness(read: str, texts: Sequence[str]) -> float:
    """Share of the characters of `texts` that were read, in [0, 1]: 1 - distance / length.

    One text is scored as in Flow-GRPO's OCR reward (2505.05470): 1 where it is contained in what was read, however much else
    there is; no distance counts above the text's length. If there are several, those that were read are taken out of what was
    read, and the others are compared with the rest, in their order.
    """
    remaining, lacking = plain(read), {}
    pieces = dict(enumerate(map(plain, texts)))
    for number in sorted(pieces, key=lambda own: -len(pieces[own])):  # so that "sun" does not take a part of "sunday"
        if pieces[number] in remaining:
            remaining = remaining.replace(pieces[number], _TAKEN, 1)
        else:
            lacking[number] = pieces[number]
    missing = "".join(lacking[number] for number in sorted(lacking))
    distance = edit_distance(remaining.replace(_TAKEN, ""), missing)
    return 1 - min(distance, len(missing)) / sum(map(len, pieces.values()))


class Text(Reward):
    """Is the text that the prompt quotes, or its metadata name, in the picture? In [0, 1], as `likeness` says.

    Does not apply to a prompt without any.

    Raises:
        FileNotFoundError: the package that reads text, or its models, are missing.
    """

    reads_prompt = False  # but for what it quotes

    def __init__(self, name: str = "text", coefficient: float = 1.0, held_out: bool = False):
        super().__init__(name, coefficient, held_out)
        self.reader = reader()

    @classmethod
    def applies_to(cls, prompt: str) -> bool:
        return bool(wanted(prompt))

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        scores = []
        for image, prompt in zip(images, prompts, strict=True):
            texts = wanted(prompt)
            scores.append(likeness("".join(self.reader.lines(pil(image[None])[0])), texts) if texts else None)
        return scores
