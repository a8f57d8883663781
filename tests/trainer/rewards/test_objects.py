"""The Objects reward: on tiny detectors against transformers' own code, and what it makes of boxes drawn by hand."""

from __future__ import annotations

import importlib.util
import shutil

import pytest
import torch

from comfyui_otca.tests.tiny import detectors as tiny_detectors
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.networks.detector import Found, GroundingDino, Owlv2, kind_of
from comfyui_otca.trainer.networks.network import shared
from comfyui_otca.trainer.rewards import RewardError
from comfyui_otca.trainer.rewards.base import score_stack
from comfyui_otca.trainer.rewards.geneval import COLORS
from comfyui_otca.trainer.rewards.objects import Objects
from comfyui_otca.trainer.rewards.shapes import PALETTE
from comfyui_otca.trainer.types import Prompt

NAMES = ["circle", "red square"]
needs_scipy = pytest.mark.skipif(
    importlib.util.find_spec("scipy") is None, reason='scipy is not installed: pip install -e ".[objects]"'
)


@pytest.fixture(scope="session")
def detectors(tmp_path_factory):
    """A folder with owlv2, grounding-dino and clip."""
    folder = tmp_path_factory.mktemp("detectors")
    tiny_detectors.owlv2(folder / "owlv2")
    tiny_detectors.grounding_dino(folder / "grounding-dino")
    tiny_rewards.clip(folder / "clip")
    return folder


def prompt(*include, exclude=()):
    return Prompt("a prompt", {"include": list(include), "exclude": list(exclude)})


@pytest.fixture
def seen(detectors):
    """seen(boxes by name, settings): an Objects reward whose detector sees those boxes in every picture."""

    def made(boxes, **settings):
        reward = Objects(path=str(detectors / "grounding-dino"), **{"clip_model": "", **settings})
        answer = {name: [Found(0.9, box) for box in own] for name, own in boxes.items()}

        class Hand:
            device = torch.device("cpu")

            def find(self, images, names, threshold):
                assert threshold == reward.threshold
                return [{name: answer.get(name, []) for name in names} for _ in images]

            def come_back(self): ...

        reward.network = Hand()
        return reward

    return made


def same(found, results, labels):
    """Whether the boxes of each picture and name are those of transformers' results."""
    assert sum(len(result["scores"]) for result in results) > 3
    for own, result in zip(found, results, strict=True):
        theirs = {name: [] for name in own}
        for score, label, box in zip(result["scores"], labels(result), result["boxes"], strict=True):
            theirs[label].append((score.item(), *box.tolist()))
        for name, boxes in own.items():
            assert [box.score for box in boxes] == sorted((box.score for box in boxes), reverse=True)
            ours, wanted = torch.tensor([(box.score, *box.box) for box in boxes]), torch.tensor(theirs[name])
            assert ours.shape == wanted.shape
            if len(ours):  # in an order of their own, where scores are nearly alike
                distances = (ours[:, None] - wanted).abs().amax(2)
                assert max(distances.amin(0).max(), distances.amin(1).max()) < 1e-3


@needs_scipy
def test_owlv2_finds_what_transformers_finds(detectors, images, pictures):
    from transformers import AutoTokenizer, Owlv2ForObjectDetection, Owlv2ImageProcessorPil, Owlv2Processor

    folder = detectors / "owlv2"
    processor = Owlv2Processor(Owlv2ImageProcessorPil.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    model, results = Owlv2ForObjectDetection.from_pretrained(folder).eval(), []
    texts = [["a photo of a circle", "a photo of a red square"]]
    for picture in pictures:  # one at a time
        inputs = processor(text=texts, images=picture, padding="max_length", max_length=16, return_tensors="pt")
        with torch.no_grad():
            outputs = model(**inputs)
        sizes = [(picture.height, picture.width)]
        results += processor.post_process_grounded_object_detection(outputs, 0.3, sizes, texts)
    found = shared(Owlv2, folder).find(images, NAMES, 0.3)
    same(found, results, lambda result: [text.removeprefix("a photo of a ") for text in result["text_labels"]])
    assert all(any(own[name] for own in found) for name in NAMES)


def test_grounding_dino_finds_what_transformers_finds(detectors, images, pictures):
    from transformers import AutoTokenizer, GroundingDinoForObjectDetection, GroundingDinoImageProcessorPil
    from transformers import GroundingDinoProcessor as Processor

    folder = detectors / "grounding-dino"
    processor = Processor(GroundingDinoImageProcessorPil.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    model = GroundingDinoForObjectDetection.from_pretrained(folder).eval()
    found = shared(GroundingDino, folder).find(images, NAMES, 0.3)
    for name in NAMES:
        results = []
        for picture in pictures:
            inputs = processor(images=picture, text=f"{name}.", return_tensors="pt")
            with torch.no_grad():
                outputs = model(**inputs)
            sizes = [(picture.height, picture.width)]
            results += processor.post_process_grounded_object_detection(outputs, inputs.input_ids, 0.3, 0.3, sizes)
        same([{name: own[name]} for own in found], results, lambda result, name=name: [name] * len(result["scores"]))


@pytest.mark.parametrize("kind", [pytest.param("owlv2", marks=needs_scipy), "grounding-dino"])
def test_scores_of_a_batch_are_those_of_its_pictures(detectors, images, kind):
    reward = Objects(path=str(detectors / kind), clip_model=str(detectors / "clip"), threshold=0.01)
    prompts = [
        prompt({"class": "circle", "count": 2, "color": "red"}),
        prompt({"class": "square"}, {"class": "circle", "position": ["left of", 0]}),
        prompt({"class": "circle", "count": 3}, exclude=[{"class": "circle", "count": 4}]),
    ]
    together = reward.score(images, prompts)
    alone = [reward.score(images[row : row + 1], prompts[row : row + 1])[0] for row in range(3)]
    assert together == alone
    reward.batch_size = 1
    assert reward.score(images[[0, 0]], prompts[:1] * 2) == together[:1] * 2


def test_the_share_of_what_was_asked_for(seen):
    boxes = {"cat": [(0, 0, 20, 20), (60, 0, 80, 20)], "dog": [(60, 60, 80, 80)]}
    pictures = torch.zeros(4, 100, 100, 3)
    prompts = [
        prompt({"class": "cat", "count": 2}),
        prompt({"class": "cat", "count": 3}, {"class": "dog"}),
        prompt({"class": "cat", "count": 2}, {"class": "dog", "position": ["below", 0]}),
        Prompt("a cat"),
    ]
    assert seen(boxes).score(pictures, prompts) == [1, 1 / 2, 1, None]
    assert seen(boxes, strict=True).score(pictures, prompts) == [1, 0, 1, None]
    left = prompt({"class": "cat", "count": 2}, {"class": "dog", "position": ["left of", 0]})
    assert seen(boxes).score(pictures[:1], [left]) == [2 / 3]


def test_boxes_on_one_object_count_once(seen):
    boxes = {"cat": [(0, 0, 20, 20), (1, 0, 21, 20)]}
    pictures, two = torch.zeros(1, 100, 100, 3), prompt({"class": "cat", "count": 2})
    assert seen(boxes).score(pictures, [two]) == [0]
    assert seen(boxes, overlap=0.95).score(pictures, [two]) == [1]


def test_colors_by_the_embedded_clip(seen):
    """The small CLIP knows the colors of the shapes world; here each fills a column of one picture."""
    picture = torch.cat([torch.tensor(color).expand(1, 40, 40, 3) / 255 for color in PALETTE.values()], 2)
    names = {color: f"{color} column" for color in PALETTE}
    boxes = {name: [(40 * column + 0.2, 0.1, 40 * column + 39.8, 39.9)] for column, name in enumerate(names.values())}
    reward = seen(boxes, clip_model="shapes-clip")
    right = reward.score(
        picture.expand(8, -1, -1, -1), [prompt({"class": name, "color": color}) for color, name in names.items()]
    )
    assert right == [1] * 8
    assert reward.score(picture, [prompt({"class": names["red"], "color": "blue"})]) == [1 / 2]


def test_a_color_is_the_nearest_mean_of_three_texts(detectors, images, pictures):
    from transformers import CLIPModel, CLIPTokenizerFast

    from comfyui_otca.tests.tiny import reference_rewards

    reward = Objects(path=str(detectors / "grounding-dino"), clip_model=str(detectors / "clip"))
    model = CLIPModel.from_pretrained(detectors / "clip").eval()
    tokenizer = CLIPTokenizerFast.from_pretrained(detectors / "clip")
    box = (4.4, 7.6, 36.2, 39.7)
    with torch.no_grad():
        for image, picture in zip(images, pictures, strict=True):
            pixels = reference_rewards.centre_crop(picture.crop(box), 32)[None]
            nearness = []
            for color in COLORS:
                ways = [
                    f"a photo of a {color} cup",
                    f"a photo of a {color}-colored cup",
                    f"a photo of a {color} object",
                ]
                tokens = tokenizer(ways, padding=True, return_tensors="pt")
                out = model(pixel_values=pixels, **tokens)
                mean = torch.nn.functional.normalize(out.text_embeds.mean(0), dim=0)
                nearness.append(float(mean @ out.image_embeds[0]))
            assert reward._color(image, Found(0.9, box), "cup") == COLORS[nearness.index(max(nearness))]


def test_a_box_beyond_the_picture_has_a_color(seen):
    reward = seen({"cat": [(-9, -9, -3, -2)], "dog": [(200, 200, 210, 210)]}, clip_model="shapes-clip")
    asked = [prompt({"class": name, "color": color}) for name in ("cat", "dog") for color in COLORS]
    scores = reward.score(torch.zeros(len(asked), 40, 40, 3), asked)
    assert sorted(scores) == [1 / 2] * 18 + [1] * 2


def test_a_color_without_clip_is_refused(seen):
    with pytest.raises(
        RewardError, match="'a prompt' ask for a red cat, and this reward has no CLIP.*Fix: set clip_model"
    ):
        seen({}).score(torch.zeros(1, 8, 8, 3), [prompt({"class": "cat", "color": "red"})])


def test_videos_and_stacks(seen):
    reward = seen({"cat": [(0, 0, 20, 20)]})
    videos = torch.zeros(2, 3, 100, 100, 3)
    assert reward.score_videos(videos, [prompt({"class": "cat"}), Prompt("a dog")]) == [1, None]
    scores = score_stack([reward], torch.zeros(2, 100, 100, 3), [prompt({"class": "cat"})] * 2, torch.tensor([0, 0]))
    assert scores.names == ("objects",) and scores.values[:, 0].tolist() == [1, 1]


def test_another_model_is_refused(detectors):
    with pytest.raises(RewardError, match="a model of type clip, where one of owlv2, grounding-dino is needed.*Fix"):
        kind_of(detectors / "clip")


def test_missing_weights_are_named(detectors, tmp_path):
    broken = shutil.copytree(detectors / "grounding-dino", tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(RewardError, match="cannot be loaded as a GroundingDinoForObjectDetection.*Fix"):
        Objects(path=str(broken), clip_model="")
    with pytest.raises(FileNotFoundError, match="google/owlv2-base-patch16-ensemble"):
        Objects(path="google/owlv2-base-patch16-ensemble", clip_model="")


def test_owlv2_without_scipy_says_so(detectors, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "scipy" else find(name, *rest))
    with pytest.raises(RewardError, match="needs the package scipy.*Fix: pip install scipy"):
        Objects(path=str(detectors / "owlv2"), clip_model="", name="without")
