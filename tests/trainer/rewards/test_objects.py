"""GenEval's structured prompts on boxes drawn by hand, and objects that tiny detectors find."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from comfyui_otca.tests.tiny import detectors as tiny_detectors
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.networks.detector import Found, GroundingDino, Owlv2, apart, kind_of, shared_area
from comfyui_otca.trainer.networks.network import OncePerBatch, shared
from comfyui_otca.trainer.networks.published import pillow_processor
from comfyui_otca.trainer.prompts import read_prompts
from comfyui_otca.trainer.rewards import RewardError
from comfyui_otca.trainer.rewards.base import score_stack
from comfyui_otca.trainer.rewards.objects import COLORS, Objects, met, relations, wish
from comfyui_otca.trainer.rewards.shapes import PALETTE
from comfyui_otca.trainer.types import Prompt

# --- what is met ------------------------------------------------------------------------------------------------------

ASSETS = Path(__file__).resolve().parents[3] / "assets"


def boxes(*corners):
    """The surest first."""
    return [Found(0.9 - 0.1 * number, box) for number, box in enumerate(corners)]


# Four squares of 20 pixels in the corners of a picture of 100, and one in the middle.
TOP_LEFT, TOP_RIGHT, BOTTOM_LEFT, MIDDLE = (0, 0, 20, 20), (80, 0, 100, 20), (0, 80, 20, 100), (40, 40, 60, 60)

# A cat left of one dog, and of two.
LEFT, LEFT_OF_TWO = (
    [{"class": "dog", "count": count}, {"class": "cat", "count": 1, "position": ["left of", 0]}] for count in (1, 2)
)


def asked(**metadata):
    return wish(Prompt("a prompt", metadata))


def never(name, objects):
    raise AssertionError("no clause has a color")


def always(color):
    return lambda name, objects: [color] * len(objects)


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        (TOP_LEFT, TOP_RIGHT, {"left of"}),
        (TOP_RIGHT, TOP_LEFT, {"right of"}),
        (TOP_LEFT, BOTTOM_LEFT, {"above"}),
        (BOTTOM_LEFT, TOP_LEFT, {"below"}),
        (TOP_RIGHT, BOTTOM_LEFT, {"right of", "above"}),  # 80 - 4 of 113 pixels each way: 0.67
        (MIDDLE, TOP_LEFT, {"right of", "below"}),
        (MIDDLE, MIDDLE, set()),
        ((44, 40, 64, 60), MIDDLE, set()),  # 4 pixels apart, which is a tenth of both sizes
        ((45, 40, 65, 60), MIDDLE, set()),  # 5 - 4 of 5: 0.2
        ((49, 40, 69, 60), MIDDLE, {"right of"}),  # 9 - 4 of 9: 0.56
        ((0, 0, 100, 100), MIDDLE, set()),
    ],
)
def test_how_one_box_stands_to_another(one, other, names):
    assert relations(one, other) == names


@pytest.mark.parametrize(
    ("clauses", "seen", "answers"),
    [
        *(
            ({"include": [{"class": "cat", "count": 2}], "exclude": [{"class": "cat", "count": 3}]}, {"cat": own}, told)
            for own, told in (
                ([], [False, True]),
                ([TOP_LEFT], [False, True]),
                ([TOP_LEFT, MIDDLE], [True, True]),
                ([TOP_LEFT, MIDDLE, TOP_RIGHT], [True, False]),
            )
        ),
        ({"exclude": [{"class": "dog"}]}, {}, [True]),
        ({"exclude": [{"class": "dog"}]}, {"dog": [MIDDLE]}, [False]),
        ({"include": LEFT}, {"dog": [TOP_RIGHT], "cat": [TOP_LEFT]}, [True, True, True]),
        ({"include": LEFT}, {"dog": [TOP_LEFT], "cat": [TOP_RIGHT]}, [True, True, False]),
        ({"include": LEFT}, {"cat": [TOP_LEFT]}, [False, True, False]),  # there is nothing to be left of
        ({"include": LEFT}, {"dog": [TOP_RIGHT]}, [True, False, False]),
        # All of several have to stand so to all others.
        ({"include": LEFT_OF_TWO}, {"dog": [TOP_RIGHT, MIDDLE], "cat": [TOP_LEFT]}, [True, True, True]),
        ({"include": LEFT_OF_TWO}, {"dog": [TOP_RIGHT, BOTTOM_LEFT], "cat": [TOP_LEFT]}, [True, True, False]),
    ],
)
def test_counts_and_places(clauses, seen, answers):
    assert met(asked(**clauses), {name: boxes(*corners) for name, corners in seen.items()}, never) == answers


def test_colors_of_as_many_as_asked_for():
    one_red = asked(include=[{"class": "cup", "count": 1, "color": "red"}])
    assert met(one_red, {"cup": boxes(MIDDLE)}, always("red")) == [True, True]
    assert met(one_red, {"cup": boxes(MIDDLE)}, always("blue")) == [True, False]
    assert met(one_red, {}, always("red")) == [False, False]
    # Of two cups the surer one counts, and of two cups that are wanted both.
    told = {TOP_LEFT: "red", MIDDLE: "blue"}
    by_place = lambda name, objects: [told[own.box] for own in objects]  # noqa: E731
    assert met(one_red, {"cup": boxes(TOP_LEFT, MIDDLE)}, by_place) == [True, True]
    assert met(one_red, {"cup": boxes(MIDDLE, TOP_LEFT)}, by_place) == [True, False]
    two_red = asked(include=[{"class": "cup", "count": 2, "color": "red"}])
    assert met(two_red, {"cup": boxes(TOP_LEFT, MIDDLE)}, by_place) == [True, False]


def test_what_has_the_wrong_color_is_in_no_place():
    under = asked(
        include=[
            {"class": "dog", "count": 1, "color": "red"},
            {"class": "cat", "count": 1, "color": "red", "position": ["above", 0]},
        ]
    )
    found = {"dog": boxes(BOTTOM_LEFT), "cat": boxes(TOP_LEFT)}
    assert met(under, found, always("red")) == [True] * 5
    only_cats = lambda name, objects: ["red" if name == "cat" else "blue"] * len(objects)  # noqa: E731
    assert met(under, found, only_cats) == [True, False, True, True, False]


def test_a_line_of_genevals_own_file_and_prompts_that_ask_for_no_objects():
    include = [{"class": "dog", "count": 1, "color": "brown"}, {"class": "cat", "count": 1, "color": "white"}]
    own = wish(Prompt("a photo of a brown dog and a white cat", {"tag": "color_attr", "include": include}))
    assert [(one.name, one.count, one.color, one.position) for one in own.include] == [
        ("dog", 1, "brown", None),
        ("cat", 1, "white", None),
    ]
    assert own.names == ("dog", "cat") and own.exclude == ()
    for metadata in ({}, {"include": []}, {"include": None, "exclude": []}, {"tag": "counting"}):
        assert wish(Prompt("a cat", metadata)) is None
    assert wish("a cat") is None


CAT = {"class": "cat", "count": 1}


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"include": "two cats"}, "include = .*valid tuple"),
        ({"include": {"class": "cat"}}, "include = .*valid tuple"),
        ({"include": ["cat"]}, "include.0 = 'cat'"),
        ({"include": [{"count": 2}]}, "include.0.class = .*required"),
        ({"include": [CAT, {"class": "cat", "colour": "red"}]}, "include.1.colour = 'red'.*not permitted"),
        ({"include": [{"class": " "}]}, "include.0.class = ' '.*at least 1"),
        ({"include": [{"class": 5}]}, "include.0.class = 5.*valid string"),
        ({"include": [{"class": "cat", "count": "two"}]}, "include.0.count = 'two'.*valid integer"),
        ({"include": [{"class": "cat", "count": 0}]}, "include.0.count = 0.*greater than or equal to 1"),
        ({"include": [{"class": "cat", "count": True}]}, "include.0.count = True.*valid integer"),
        ({"include": [{"class": "cat", "color": "mauve"}]}, "include.0.color = 'mauve'.*'red', 'orange'"),
        ({"include": [{"class": "cat", "position": ["left of", 0]}]}, "include.0.position = .*a clause before it"),
        ({"include": [CAT, {"class": "dog", "position": ["beside", 0]}]}, "include.1.position.0 = 'beside'.*'left of'"),
        ({"include": [CAT, {"class": "dog", "position": ["above", 1]}]}, "include.1.position = .*a clause before it"),
        ({"include": [CAT, {"class": "dog", "position": "above"}]}, "include.1.position = 'above'"),
        ({"include": [CAT], "exclude": [{"class": "dog", "color": "red"}]}, "exclude.0.color = 'red'.*not permitted"),
    ],
)
def test_what_is_malformed_is_named(metadata, key):
    with pytest.raises(RewardError, match=rf"of the prompt 'two cats' say {key}.*Fix: in its line"):
        wish(Prompt("two cats", metadata))


def test_of_boxes_on_one_object_the_surest_is_kept():
    assert shared_area((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(50 / 150)
    assert (shared_area(MIDDLE, MIDDLE), shared_area(TOP_LEFT, MIDDLE), shared_area((5,) * 4, (5,) * 4)) == (1, 0, 0)
    sure, near, other = boxes((0, 0, 10, 10), (1, 0, 11, 10), MIDDLE)  # the first two share 90 of 110
    assert apart([sure, near, other], 0.5) == [sure, other]
    assert apart([sure, near, other], 0.9) == [sure, near, other]


def test_every_prompt_of_the_pack_can_be_read():
    prompts = read_prompts("", str(ASSETS / "prompts" / "objects.jsonl"))
    wishes = [wish(prompt) for prompt in prompts]
    assert len(wishes) == 48 and all(wishes)
    assert sum(bool(own.exclude) for own in wishes) == sum(own.include[-1].position is not None for own in wishes) == 12


# --- the reward -------------------------------------------------------------------------------------------------------

NAMES = ["circle", "red square"]


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

        class Hand(OncePerBatch):
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


def test_owlv2_finds_what_transformers_finds(detectors, images, pictures):
    from transformers import AutoTokenizer, Owlv2ForObjectDetection, Owlv2Processor

    folder, texts = detectors / "owlv2", [["a photo of a circle", "a photo of a red square"]]
    processor = Owlv2Processor(
        pillow_processor("Owlv2ImageProcessor").from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    )
    results = by_transformers(
        *(Owlv2ForObjectDetection.from_pretrained(folder), processor, pictures),
        lambda outputs, inputs, sizes: processor.post_process_grounded_object_detection(outputs, 0.3, sizes, texts),
        **dict(text=texts, padding="max_length", max_length=16),
    )
    found = shared(Owlv2, folder).find(images, NAMES, 0.3)
    same(found, results, lambda result: [text.removeprefix("a photo of a ") for text in result["text_labels"]])
    assert all(any(own[name] for own in found) for name in NAMES)


def test_grounding_dino_finds_what_transformers_finds(detectors, images, pictures):
    from transformers import AutoTokenizer, GroundingDinoForObjectDetection
    from transformers import GroundingDinoProcessor as Processor

    folder = detectors / "grounding-dino"
    processor = Processor(
        pillow_processor("GroundingDinoImageProcessor").from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    )
    read = processor.post_process_grounded_object_detection
    found = shared(GroundingDino, folder).find(images, NAMES, 0.3)
    for name in NAMES:
        results = by_transformers(
            *(GroundingDinoForObjectDetection.from_pretrained(folder), processor, pictures),
            lambda outputs, inputs, sizes: read(outputs, inputs.input_ids, 0.3, 0.3, sizes),
            text=f"{name}.",
        )
        same([{name: own[name]} for own in found], results, lambda result, name=name: [name] * len(result["scores"]))


def by_transformers(model, processor, pictures, post_process, **texts):
    """What a detector of transformers finds, one picture at a time."""
    results = []
    for picture in pictures:
        inputs = processor(images=picture, return_tensors="pt", **texts)
        with torch.no_grad():
            outputs = model.eval()(**inputs)
        results += post_process(outputs, inputs, [(picture.height, picture.width)])
    return results


@pytest.mark.parametrize("kind", ["owlv2", "grounding-dino"])
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
    pictures, two = torch.zeros(4, 100, 100, 3), {"class": "cat", "count": 2}
    prompts = [
        prompt(two),
        prompt({"class": "cat", "count": 3}, {"class": "dog"}),
        prompt(two, {"class": "dog", "position": ["below", 0]}),
        Prompt("a cat"),
    ]
    assert seen(boxes).score(pictures, prompts) == [1, 1 / 2, 1, None]
    assert seen(boxes, strict=True).score(pictures, prompts) == [1, 0, 1, None]
    assert seen(boxes).score_videos(pictures[:, None].expand(4, 3, 100, 100, 3), prompts) == [1, 1 / 2, 1, None]
    left = prompt(two, {"class": "dog", "position": ["left of", 0]})
    assert seen(boxes).score(pictures[:1], [left]) == [2 / 3]
    on_one = {"cat": [(0, 0, 20, 20), (1, 0, 21, 20)]}
    assert seen(on_one).score(pictures[:1], [prompt(two)]) == [0], "boxes on one object count once"
    scores = score_stack([seen(on_one, overlap=0.95)], pictures[:2], [prompt(two)] * 2, torch.tensor([0, 0]))
    assert scores.names == ("objects",) and scores.values[:, 0].tolist() == [1, 1]


def test_colors_by_the_embedded_clip(seen):
    """The small CLIP knows the colors of the shapes world; here each fills a column of one picture."""
    picture = torch.cat([torch.tensor(color).expand(1, 40, 40, 3) / 255 for color in PALETTE.values()], 2)
    names = {color: f"{color} column" for color in PALETTE}
    boxes = {name: [(40 * column + 0.2, 0.1, 40 * column + 39.8, 39.9)] for column, name in enumerate(names.values())}
    reward = seen(boxes, clip_model="shapes-clip")
    own = [prompt({"class": name, "color": color}) for color, name in names.items()]
    assert reward.score(picture.expand(8, -1, -1, -1), own) == [1] * 8
    assert reward.score(picture, [prompt({"class": names["red"], "color": "blue"})]) == [1 / 2]
    beyond = seen({"cat": [(-9, -9, -3, -2)], "dog": [(200, 200, 210, 210)]}, clip_model="shapes-clip")
    asked = [prompt({"class": name, "color": color}) for name in ("cat", "dog") for color in COLORS]
    scores = beyond.score(torch.zeros(len(asked), 40, 40, 3), asked)
    assert sorted(scores) == [1 / 2] * 18 + [1] * 2, "a box beyond the picture has a color too"


def test_a_color_is_the_nearest_mean_of_three_texts(detectors, images, pictures):
    from transformers import CLIPModel, CLIPTokenizerFast

    from comfyui_otca.tests.tiny import reference_rewards

    reward = Objects(path=str(detectors / "grounding-dino"), clip_model=str(detectors / "clip"))
    model = CLIPModel.from_pretrained(detectors / "clip").eval()
    tokenizer = CLIPTokenizerFast.from_pretrained(detectors / "clip")
    box, ways = (4.4, 7.6, 36.2, 39.7), ("a photo of a {} cup", "a photo of a {}-colored cup", "a photo of a {} object")
    for image, picture in zip(images, pictures, strict=True):
        pixels, nearness = reference_rewards.centre_crop(picture.crop(box), 32)[None], []
        for color in COLORS:
            tokens = tokenizer([way.format(color) for way in ways], padding=True, return_tensors="pt")
            with torch.no_grad():
                out = model(pixel_values=pixels, **tokens)
            nearness.append(float(torch.nn.functional.normalize(out.text_embeds.mean(0), dim=0) @ out.image_embeds[0]))
        assert reward.color_of(image, Found(0.9, box), "cup") == COLORS[nearness.index(max(nearness))]


def test_what_is_refused(detectors, seen, tmp_path):
    with pytest.raises(RewardError, match="'a prompt' ask for a red cat, and .* has no CLIP.*Fix: set clip_model"):
        seen({}).score(torch.zeros(1, 8, 8, 3), [prompt({"class": "cat", "color": "red"})])
    with pytest.raises(RewardError, match="a model of type clip, where one of owlv2, grounding-dino is needed.*Fix"):
        kind_of(detectors / "clip")
    broken = shutil.copytree(detectors / "grounding-dino", tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(RewardError, match="cannot be loaded as a GroundingDinoForObjectDetection.*Fix"):
        Objects(path=str(broken), clip_model="")
    with pytest.raises(FileNotFoundError, match="google/owlv2-base-patch16-ensemble"):
        Objects(path="google/owlv2-base-patch16-ensemble", clip_model="")
