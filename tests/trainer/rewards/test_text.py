"""Text read back from pictures: quotes, distances counted by hand, and words that the real OCR models read."""

from __future__ import annotations

import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from comfyui_otca.host import extras
from comfyui_otca.trainer.rewards import RewardError
from comfyui_otca.trainer.rewards import text as ocr
from comfyui_otca.trainer.rewards.base import score_stack
from comfyui_otca.trainer.rewards.text import Text, edit_distance, likeness, quoted, wanted
from comfyui_otca.trainer.types import Prompt

ASSETS = Path(__file__).resolve().parents[3] / "assets"
needs_ocr = pytest.mark.skipif(
    bool(extras.wrong("", "ocr")), reason='the OCR package is not installed: pip install -e ".[ocr]"'
)


@pytest.fixture
def blind(monkeypatch):
    """blind(*lines): a Text reward that reads those lines in every picture."""

    def made(*lines, **settings):
        seen = types.SimpleNamespace(lines=lambda picture: list(lines))
        monkeypatch.setattr(ocr, "reader", lambda: seen)
        return Text(**settings)

    return made


def written(text: str, size: int = 48, side: int = 320) -> torch.Tensor:
    """[1, H, W, 3]: white letters on blue."""
    from matplotlib import font_manager

    picture = Image.new("RGB", (side, side), (30, 60, 120))
    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size)
    ImageDraw.Draw(picture).text((24, 120), text, font=font, fill="white")
    return torch.from_numpy(np.array(picture))[None] / 255


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ('a sign that says "Open late"', ["Open late"]),
        ("a sign “Café du Nord” above a door „Nr. 7“", ["Café du Nord", "Nr. 7"]),
        ("un panneau « Bonjour »", ["Bonjour"]),
        ("看板に「開」と『営業中』", ["開", "営業中"]),
        ("a poster with 'Hello World' on it", ["Hello World"]),
        ("a shirt with 'don't panic' in red", ["don't panic"]),
        ("a shirt with ‘Don’t panic’ in red", ["Don’t panic"]),
        ('"A" over "B", beside \'C\'', ["A", "B", "C"]),
        ('a cup, "it\'s tea time"', ["it's tea time"]),
        ("the dogs' bowl and the cats' bed", []),
        ("it's the artist's '90s car", []),
        ("rock 'n' roll and fish 'n' chips", []),
        # Scripts without spaces: a letter may stand right before and behind a quote.
        ('招牌上写着"你好"', ["你好"]),
        ('看板に"OPEN"と書いてある', ["OPEN"]),
        ('写着"A"，"B"两个字母', ["A", "B"]),
        ("海报上写着'你好'两个字", ["你好"]),
        ("第5“你好”", ["你好"]),
        ("간판에 '열림'이라고 쓰여 있다", ["열림"]),
        ('간판에"열림"이라고', ["열림"]),
        ('ป้ายเขียนว่า"เปิด"', ["เปิด"]),
        ("看板に〝本日休業〟と｢開｣", ["本日休業", "開"]),
        # Marks of other languages, of full width, and such as were escaped.
        ("a sign that says ＂OPEN＂", ["OPEN"]),
        ("a sign that says ＇OPEN＇", ["OPEN"]),
        ("ein Schild »Willkommen« und »Auf Wiedersehen«", ["Willkommen", "Auf Wiedersehen"]),
        ("en skylt med ”Öppet” och »Stängt»", ["Öppet", "Stängt"]),
        ("ein Schild ‚Offen‘ neben ‹Zu›", ["Offen", "Zu"]),
        ("un cartel «Abierto», otro « Cerrado »", ["Abierto", "Cerrado"]),
        (r"sign that says \"HELLO\"", ["HELLO"]),
        ("a sign that says &quot;HELLO&quot; and &#39;BYE&#39;", ["HELLO", "BYE"]),
        # Without a space, and beside inches.
        ('a sign that says"OPEN"', ["OPEN"]),
        ('a 5" phone that says "HI"', ["HI"]),
        ('a 24"x36" print of 7" by 5”', []),
        ('a 12" record, "Route 66", on a 3.5" disk', ["Route 66"]),
        ('a 5" phone beside a 7" tablet', []),
        ('a sign that says ""', []),
        ('an unfinished "quote', []),
        ("a red circle", []),
    ],
)
def test_what_a_prompt_quotes(prompt, texts):
    assert quoted(prompt) == texts
    signs = (ASSETS / "prompts" / "signs.txt").read_text(encoding="utf-8").splitlines()
    assert len(signs) == 32 and all(len(quoted(sign)) == 1 for sign in signs)


def test_the_edit_distance():
    for one, other, distance in (("kitten", "sitting", 3), ("flaw", "lawn", 2), ("", "abc", 3), ("ab", "ba", 2)):
        assert edit_distance(one, other) == edit_distance(other, one) == distance
    assert edit_distance("same", "same") == 0


@pytest.mark.parametrize(
    ("read", "texts", "share"),
    [
        ("Sitting", ["Sitting"], 1),
        ("kitten", ["sitting"], 1 - 3 / 7),
        ("HELLO   world", ["Hello World"], 1),  # neither case nor spaces count
        ("GRAND OPENING today only", ["opening"], 1),  # containing is full marks
        ("", ["open"], 0),
        ("something else altogether", ["open"], 0),  # no distance above the length
        ("opne", ["open"], 1 - 2 / 4),
        ("DON’T", ["don't"], 1),
        ("ＯＰＥＮ", ["open"], 1),  # full-width letters, which OCR of Chinese gives
        ("exitopen", ["open", "exit"], 1),  # in any order
        ("opxnexit", ["open", "exit"], 1 - 1 / 8),  # what was found does not count against the other
        ("sunday", ["sun", "sunday"], 1 - 3 / 9),  # the one word is not there twice
        ("go", ["go", "go"], 1 - 2 / 4),
    ],
)
def test_how_much_of_the_texts_was_read(read, texts, share):
    assert likeness(read, texts) == pytest.approx(share)


@pytest.mark.parametrize(
    ("metadata", "texts"),
    [
        ({"text": "Open"}, ["Open"]),
        ({"words": ["Open", "late"]}, ["Open", "late"]),
        ({"words": [], "tag": "other"}, []),
        ({"tag": "other"}, ["sign"]),
        *((wrong, None) for wrong in ({"text": 7}, {"words": ["a", 7]}, {"words": {"a": 1}}, {"text": None})),
    ],
)
def test_the_metadata_go_before_the_quotes(metadata, texts):
    prompt = Prompt('a "sign"', metadata)
    if texts is None:
        with pytest.raises(RewardError, match=f"'a \"sign\"'.*say {next(iter(metadata))} = .*Fix"):
            wanted(prompt)
    else:
        assert wanted(prompt) == texts


def test_a_prompt_without_text_does_not_apply_and_a_video_is_the_mean_over_its_frames(blind, monkeypatch):
    reward, prompts = blind("open"), ['says "open"', "a cat", 'says "ovens"']
    assert reward.score(torch.zeros(3, 8, 8, 3), prompts) == [1, None, pytest.approx(1 - 2 / 5)]
    scores = score_stack([reward], torch.zeros(3, 8, 8, 3), prompts, torch.tensor([0, 1, 2]))
    assert scores.names == ("text",) and scores.values[:2, 0].tolist() == [1, torch.inf]
    shown = iter([["open"], ["oven"], [], ["open"]])
    monkeypatch.setattr(reward.reader, "lines", lambda picture: next(shown))
    assert reward.score_videos(torch.zeros(1, 4, 8, 8, 3), ['"open"']) == [pytest.approx((1 + 0.75 + 0 + 1) / 4)]
    assert reward.score_videos(torch.zeros(1, 4, 8, 8, 3), ["a cat"]) == [None]


def test_a_missing_package_and_missing_models_are_named_and_not_fetched(monkeypatch):
    if not extras.wrong("", "ocr"):
        with (
            monkeypatch.context() as patch,
            pytest.raises(FileNotFoundError, match="no PP-OCRv9_rec.*Fix: .*pip install"),
        ):
            patch.setitem(ocr.MODELS, "Rec", "PP-OCRv9_rec_huge.onnx")
            ocr.find_models()
    ocr.reader.cache_clear()
    monkeypatch.setattr(extras, "installed", {"onnxruntime": "1.20"}.get)
    with pytest.raises(
        extras.MissingPackage, match=r"Text needs rapidocr>=3.10 .*Fix: .*pip install \"rapidocr>=3.10\""
    ):
        Text()


@needs_ocr
def test_the_real_models_read_what_was_written():
    reward = Text()
    images = torch.cat([written("Open late"), written("Opem late"), written("")])
    scores = reward.score(images, ['a shop, "Open late"'] * 3)
    assert scores == [1, pytest.approx(1 - 1 / 8), 0]


@needs_ocr
def test_small_words_are_read_back():
    words = ("bakery", "No.7", "façade", "mother-in-law", "quartz")
    pictures = torch.cat([written(word, 24) for word in words])
    assert Text().score(pictures, [Prompt("a sign", {"text": word}) for word in words]) == [1] * len(words)
