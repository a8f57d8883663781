"""HPSv2.1 against open_clip's architecture written out on the same tensors."""

from __future__ import annotations

import sys
import types

import ftfy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comfyui_otca.host.extras import MissingPackage
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import reference_rewards
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.rewards import RewardError, hps
from comfyui_otca.trainer.rewards.hps import HPSv2, clean

pytestmark = pytest.mark.anywhere


def tokens(tiny, prompts):
    """From start to end token, as open_clip has them before it fills up with zeros."""
    from transformers import CLIPTokenizerFast

    return CLIPTokenizerFast.from_pretrained(tiny / "clip")(prompts, truncation=True, max_length=77).input_ids


def expected(tiny, file, pictures, prompts, size=32):
    pixels = torch.stack([reference_rewards.letterbox(picture, size) for picture in pictures])
    state = torch.load(file)["state_dict"]
    return torch.cosine_similarity(*reference_rewards.open_clip(state, pixels, tokens(tiny, prompts)))


def scorer(tiny, **settings):
    return HPSv2(path=str(tiny / "hps.pt"), tokenizer=str(tiny / "clip"), **settings)


def test_the_cosine_and_each_tower_by_open_clips_architecture(tiny, images, pictures, prompts):
    judge = scorer(tiny)
    scores = judge.score(images, prompts)
    state = torch.load(tiny / "hps.pt")["state_dict"]
    pixels = torch.stack([reference_rewards.letterbox(picture, 32) for picture in pictures])
    seen, read = reference_rewards.open_clip(state, pixels, tokens(tiny, prompts))
    torch.testing.assert_close(scores.cpu(), torch.cosine_similarity(seen, read), atol=2e-6, rtol=1e-5)
    assert scores.std() > 1e-3
    torch.testing.assert_close(judge.network.pictures(images).cpu(), seen, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(judge.network.texts(prompts).cpu(), read, atol=1e-5, rtol=1e-4)


def test_what_fills_a_text_up_is_never_looked_at(tiny, pictures, images):
    """open_clip fills up with zeros, transformers with end tokens, and a text may be cut at 77."""
    told = ["", "red", "a red circle " * 60]
    wanted = expected(tiny, tiny / "hps.pt", pictures, told)
    torch.testing.assert_close(scorer(tiny).score(images, told).cpu(), wanted, atol=2e-6, rtol=1e-5)


def test_texts_are_cleaned_as_open_clip_does(tiny, images):
    for told, cleaned in {
        "  red &amp;amp; blue ": "red & blue",
        "a &lt;b&gt;": "a <b>",
        "<b> &amp;amp; ": "<b> &",  # where a tag is, ftfy leaves entities alone
        "schÃ¶n": "schön",
        "\N{LEFT SINGLE QUOTATION MARK}red\N{RIGHT SINGLE QUOTATION MARK}": "'red'",
    }.items():
        assert clean(told) == cleaned
    told = [" a RED  &amp;amp; blue circle ", "a red & blue circle", "a red circle"]
    scores = scorer(tiny).score(images[[0, 0, 0]], told)
    assert scores[0] == scores[1] != scores[2]


@given(text=st.text(st.characters(max_codepoint=126, min_codepoint=32, exclude_characters="&")))
def test_what_needs_no_ftfy_is_what_ftfy_leaves_as_it_is(text):
    assert ftfy.fix_text(text) == text and clean(text) == text.strip()


def test_without_ftfy_plain_prompts_are_read_and_others_are_named(monkeypatch):
    monkeypatch.setattr("comfyui_otca.host.extras.installed", lambda name: None)
    assert clean(" a red circle") == "a red circle"
    with pytest.raises(MissingPackage, match=r"to read the prompt 'schön', needs ftfy \(none is here\).*Fix: .*ftfy"):
        clean("schön")


def test_comfyui_brings_the_tokenizer(tiny, monkeypatch, images, prompts):
    monkeypatch.setattr("comfyui_otca.host.paths.clip_tokenizers", lambda: [tiny / "clip"])
    judge = HPSv2(path=str(tiny / "hps.pt"))
    assert judge.score(images, prompts).tolist() == scorer(tiny).score(images, prompts).tolist()
    with pytest.raises(FileNotFoundError, match="'nowhere' was not found"):
        HPSv2(path=str(tiny / "hps.pt"), tokenizer="nowhere")


def test_sizes_are_read_off_the_tensors(tiny, tmp_path, images, pictures, prompts):
    file = tiny_rewards.hps(
        tmp_path / "hps.pt", width=96, text_width=64, layers=3, text_layers=1, projection=32, patch=4, image=16
    )
    judge = HPSv2(path=str(file), tokenizer=str(tiny / "clip"))
    wanted = expected(tiny, file, pictures, prompts, 16)
    torch.testing.assert_close(judge.score(images, prompts).cpu(), wanted, atol=2e-6, rtol=1e-5)


def test_the_configuration_of_the_published_model():
    """ViT-H/14: no memory is taken for its tensors."""
    with torch.device("meta"):
        state = {
            "visual.positional_embedding": torch.empty(257, 1280),
            "visual.conv1.weight": torch.empty(1280, 3, 14, 14),
            "visual.proj": torch.empty(1280, 1024),
            "token_embedding.weight": torch.empty(49408, 1024),
            "positional_embedding": torch.empty(77, 1024),
        }
        for tower, width, layers in (("visual.", 1280, 32), ("", 1024, 24)):
            blocks = f"{tower}transformer.resblocks."
            state[f"{blocks}0.mlp.c_fc.weight"] = torch.empty(4 * width, width)
            state |= {f"{blocks}{number}.ln_1.bias": torch.empty(width) for number in range(layers)}
    config = hps.clip_config(state)
    assert config.projection_dim == 1024
    for own, sizes in ((config.text_config, (1024, 4096, 24, 16)), (config.vision_config, (1280, 5120, 32, 16))):
        assert (own.hidden_size, own.intermediate_size, own.num_hidden_layers, own.num_attention_heads) == sizes
        assert own.hidden_act == "gelu"
    assert (config.vision_config.patch_size, config.vision_config.image_size) == (14, 224)
    assert config.text_config.eos_token_id == 49407


def test_a_plain_state_dict_will_do(tiny, tmp_path, images, prompts):
    torch.save(torch.load(tiny / "hps.pt")["state_dict"], tmp_path / "plain.pt")
    judge = HPSv2(path=str(tmp_path / "plain.pt"), tokenizer=str(tiny / "clip"))
    assert torch.equal(judge.score(images, prompts), scorer(tiny).score(images.clone(), prompts))


# -- the authors' own package -------------------------------------------------------------------------------------------------


class OpenClip(torch.nn.Module):
    """What the package's model offers, by the architecture written out."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.batches = []

    def load_state_dict(self, state):
        self.state = state

    def encode_image(self, pixels):
        self.batches.append(len(pixels))
        return reference_rewards.open_clip(self.state, pixels, [[0]])[0]

    def encode_text(self, ids):
        rows = [row[: row.argmax() + 1].tolist() for row in ids]
        return reference_rewards.open_clip(self.state, torch.zeros(1, 3, 32, 32), rows)[1]


@pytest.fixture
def package(tiny, monkeypatch):
    """A stand-in for `hpsv2`, with the calls that are made of it."""
    made = []

    def create_model_and_transforms(name, pretrained, **options):
        assert (name, pretrained) == ("ViT-H-14", None), "base weights would be downloaded"
        assert options["light_augmentation"], "without it hpsv2 1.2.0 crops pictures, which its own score pads"
        made.append(OpenClip())
        return made[-1], None, lambda picture: reference_rewards.letterbox(picture, 32)

    def tokenizer(texts):
        ids = torch.zeros(len(texts), 77, dtype=torch.long)
        for row, told in enumerate(tokens(tiny, texts)):
            ids[row, : len(told)] = torch.tensor(told)
        return ids

    module = types.ModuleType("hpsv2.src.open_clip")
    module.create_model_and_transforms = create_model_and_transforms
    module.get_tokenizer = lambda name: tokenizer
    for name in ("hpsv2", "hpsv2.src"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "hpsv2.src.open_clip", module)
    return made


@pytest.mark.host  # a stand-in on the CPU
def test_the_package_gives_the_same_scores_a_batch_at_once(tiny, images, prompts, package):
    judge = scorer(tiny, provider="hpsv2")
    scores = judge.score(images, prompts)
    torch.testing.assert_close(scores, scorer(tiny).score(images.clone(), prompts), atol=1e-5, rtol=1e-4)
    scorer(tiny, provider="hpsv2").score(images.clone(), prompts)
    [model] = package
    assert model.batches == [3, 3], "one model for both, asked for three pictures at a time"
    followed = judge.differentiable(images.clone().requires_grad_(), prompts)
    torch.testing.assert_close(followed.detach(), scores, atol=1e-5, rtol=1e-4)
    assert followed.requires_grad
    assert judge.network.leave() is False


@pytest.mark.host  # after the stand-in
def test_a_package_that_does_not_work_is_an_error_with_its_reason(tiny, monkeypatch):
    for name in ("hpsv2", "hpsv2.src", "hpsv2.src.open_clip"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        RewardError, match=r"provider 'hpsv2'.*ModuleNotFoundError.*Fix: set provider to transformers.*--no-deps"
    ):
        scorer(tiny, provider="hpsv2")


def test_its_node_knows_the_package(tiny):
    """What is missing besides is tested with the other published rewards."""
    node = NODE_CLASS_MAPPINGS["OTCA_RewardHPSv2"]
    there = {"path": str(tiny / "hps.pt"), "tokenizer": str(tiny / "clip")}
    assert node.VALIDATE_INPUTS(**{**there, "tokenizer": "nowhere"}, provider="hpsv2") is True
    assert "provider: 'other'" in node.VALIDATE_INPUTS(**there, provider="other")
