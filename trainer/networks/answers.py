"""Answers of a CLIP object of ComfyUI about pictures: some text encoders are whole vision-language models.

ComfyUI's own `generate` asks them too, one question at a time. Here questions of one form share a forward pass, each picture goes
through the vision tower once, and the head computes in float32: in bfloat16 logits near 20 are an eighth apart.

No prefix is kept from one picture to the next. Pictures come before the question, as every family here was trained, so that two
questions about different pictures have the chat's first three or four tokens in common: of Qwen3-VL's about 300 for a picture of
512 x 512 that is 1 %. What they could share is the source of an edit, or the first of two that are compared, about half of the
tokens; but ComfyUI's networks continue from a cache by one token at a time (the mask of llama.py is as long as what is cached).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import RewardError

if TYPE_CHECKING:
    from comfy.sd import CLIP

WORKING = "Qwen3-VL 4B or 8B, Qwen3.5, or Gemma 3 with its vision tower"
MOST_PIXELS = 1024 * 1024  # of a picture: larger ones are shown smaller
LONGEST = 512  # tokens of an answer that is written out
SPECIAL = re.compile(r"<[^<>\s]+>")


@dataclass(frozen=True)
class Asked:
    """A question: its pictures [H, W, 3] in [0, 1], which come before its text, and how the answer begins."""

    pictures: tuple[Tensor, ...]
    text: str
    begun: str = ""


@dataclass(frozen=True)
class Reading:
    """The first token of an answer: the probability of each choice."""

    mass: tuple[float, ...]


@dataclass(frozen=True)
class Form:
    """How a family is talked to.

    Attributes:
        chat: what stands around a question.
        picture: what stands for a picture.
        mark: the token in it that the picture's features replace.
        more: (transformer, a batch) -> what its forward pass needs besides embeddings.
        least: pixels that a picture has at least: a smaller one is enlarged.
        square: a picture becomes a square of the tower's own size; else it keeps its proportions.
        together: tokens of one picture see each other, also those behind them.
        turned, look: what ComfyUI computes otherwise than the model was trained with: (model, positions, device) -> its rotary
            embedding; (network, a picture [1, H, W, 3], device) -> its features.
    """

    chat: str
    picture: str
    mark: str
    more: Callable[[Any, _Batch], dict[str, Any]]
    least: int = 0
    square: bool = False
    together: bool = False
    turned: Callable[[Any, Tensor, torch.device], Any] | None = None
    look: Callable[[Any, Tensor, torch.device], Any] | None = None


@dataclass(frozen=True)
class _Batch:
    """Rows that differ in their content alone: embeddings [B, S, H], and where pictures are in each row."""

    embeds: Tensor
    infos: Sequence[list[dict[str, Any]]]


def _qwen3(transformer: Any, batch: _Batch) -> dict[str, Any]:
    rows = [transformer.build_image_inputs(batch.embeds[:1], info) for info in batch.infos]
    positions, mask, deep = rows[0]
    if positions is None:
        return {}
    together = [torch.cat([row[2][layer] for row in rows]) for layer in range(len(deep))]
    return {"position_ids": positions, "visual_pos_masks": mask.expand(len(rows), -1), "deepstack_embeds": together}


def _qwen35(transformer: Any, batch: _Batch) -> dict[str, Any]:
    from comfy.text_encoders.qwen_vl import qwen2vl_mrope_position_ids

    return {"position_ids": qwen2vl_mrope_position_ids(batch.infos[0], batch.embeds.shape[1], batch.embeds.device)}


def _turned(model: Any, positions: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines and sines of Qwen3.5's rotary positions [3, S]: time, height and width take turns from one frequency to the
    next, as it was trained. ComfyUI gives each axis a block of frequencies, which moved P(yes) of a tiny model by up to 4 %.
    """
    config = model.config
    width = int(config.head_dim * config.partial_rotary_factor)
    frequencies = config.rope_theta ** -(torch.arange(0, width, 2, device=device) / width)
    angles = positions.float()[..., None] * frequencies
    mixed = angles[0].clone()
    for axis in (1, 2) if len(angles) == 3 else ():
        every_third = slice(axis, 3 * config.mrope_section[axis], 3)
        mixed[:, every_third] = angles[axis][:, every_third]
    whole = torch.cat([mixed, mixed], -1)[None, None]
    return whole.cos(), whole.sin()[..., : width // 2], -whole.sin()[..., width // 2 :]


def _looked(network: Any, picture: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Qwen3.5's features of a picture by its own mean and deviation of colours, 0.5 (Qwen/Qwen3.5-4B, preprocessor_config.json);
    ComfyUI takes CLIP's."""
    from comfy.text_encoders.qwen_vl import process_qwen2vl_images

    half = [0.5, 0.5, 0.5]
    patches, grid = process_qwen2vl_images(picture, patch_size=16, image_mean=half, image_std=half)
    return network.visual(patches.to(device, dtype=torch.float32), grid), grid


QWEN_CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QWEN_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN_LEAST = 256 * 256  # shortest_edge of their preprocessor_config.json
# ComfyUI's tokenizer of Gemma 3 puts <bos> in place of the first token, since it takes that for one: here one that is in excess.
GEMMA3 = Form(
    "<end_of_turn><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n",
    "\n\n<start_of_image><image_soft_token><end_of_image>\n\n",
    "<image_soft_token>",
    lambda transformer, batch: {},
    square=True,
    together=True,
)
# By the class of ComfyUI's that a network is or descends from.
FORMS: Mapping[str, Form] = {
    "Qwen3VL": Form(QWEN_CHAT, QWEN_PICTURE, "<|image_pad|>", _qwen3, QWEN_LEAST),
    "Qwen35": Form(
        QWEN_CHAT + "<think>\n\n</think>\n\n",
        QWEN_PICTURE,
        "<|image_pad|>",
        _qwen35,
        QWEN_LEAST,
        turned=_turned,
        look=_looked,
    ),
    "Gemma3_4B_Vision": GEMMA3,
    "Gemma3_12B": GEMMA3,
}
# Published with a head of their own, for which ComfyUI takes the table of embeddings.
UNTIED = ("Qwen25_7BVLI",)


class Answers:
    """A vision-language model that ComfyUI loaded as a CLIP.

    Raises:
        RewardError: it cannot answer, by what it says of itself.
    """

    def __init__(self, clip: CLIP):
        self.clip = clip
        self.encoder = check(clip)
        self.network = self.encoder.transformer
        self.form = FORMS[next(name for name in _family(self.network) if name in FORMS)]
        inner = clip.tokenizer
        self._words = getattr(inner, getattr(inner, "clip", ""), inner)
        [self._mark] = self._plain(self.form.mark)
        self._special = {*SPECIAL.findall(self.form.chat + self.form.picture)}

    def ask(self, asked: Sequence[Asked], choices: Sequence[str], batch_size: int = 0) -> Iterator[dict[int, Reading]]:
        """How likely each question's answer begins with each choice; {number of the question: its reading} a forward pass.

        `batch_size`: questions to one forward pass, of those whose pictures and texts have one size; 0: all of them.

        Raises:
            RewardError: this model has no token for a choice.
        """
        tokens = [self.spellings(choice) for choice in choices]
        looks: dict[int, Any] = {}
        uses = Counter(id(picture) for item in asked for picture in item.pictures)
        forms: dict[tuple, list[int]] = {}
        rows = [self._tokens(item) for item in asked]
        for number, (row, item) in enumerate(zip(rows, asked, strict=True)):
            marks = tuple(place for place, token in enumerate(row) if token == self._mark)
            if len(marks) != len(item.pictures):
                raise RewardError(f"a question about {len(item.pictures)} pictures has {len(marks)} places for them")
            forms.setdefault((len(row), marks, *(picture.shape for picture in item.pictures)), []).append(number)
        for alike in forms.values():
            size = batch_size or len(alike)
            for first in range(0, len(alike), size):
                part = alike[first : first + size]
                with self._ready(asked[part[0]], len(rows[part[0]]), len(part), looks):
                    logits = self.last_logits([self._row(rows[n], asked[n]) for n in part])
                    likely = logits.log_softmax(-1)
                    masses = [likely[:, ids].exp().sum(1).tolist() for ids in tokens]
                for picture in (picture for n in part for picture in asked[n].pictures):
                    uses[id(picture)] -= 1
                    if not uses[id(picture)]:
                        looks.pop(id(picture), None)
                yield {n: Reading(tuple(mass[place] for mass in masses)) for place, n in enumerate(part)}

    def write(self, one: Asked, longest: int = LONGEST) -> str:
        """The likeliest answer, token by token, as ComfyUI's Generate Text writes it."""
        row = self._row(self._tokens(one), one)
        tokens = [[(part, 1.0) for part in row]]
        key = getattr(self.clip.tokenizer, "clip_name", "")
        with torch.inference_mode(), self._seen_together(self._places(row)):
            made = self.clip.generate({key: tokens} if key else tokens, do_sample=False, max_length=longest, seed=0)
        return self.clip.decode(made)

    def spellings(self, choice: str) -> list[int]:
        """The tokens that are that word: in small letters, capitals or both, with a space before it or without.

        Raises:
            RewardError: none is.
        """
        ways = {spelt for word in (choice, choice.capitalize(), choice.upper()) for spelt in (word, f" {word}")}
        tokens = {ids[0] for ids in map(self._plain, ways) if len(ids) == 1}
        if not tokens:
            raise RewardError(f"{type(self.network).__name__} has no token for {choice!r}. Fix: ask for a single word")
        return sorted(tokens)

    def leave(self) -> None:
        """To main memory."""
        import comfy.model_management

        comfy.model_management.unload_model_and_clones(self.clip.patcher)

    # -- tokens ----------------------------------------------------------------------------------------------------------

    def _plain(self, text: str) -> list[int]:
        """Its tokens, without those that a tokenizer puts before most texts."""
        before, tokens = (list(self._words.tokenizer(part)["input_ids"]) for part in ("", text))
        return tokens[len(before) :] if tokens[: len(before)] == before else tokens

    def _tokens(self, one: Asked) -> list[int]:
        text = one.text
        for special in self._special:  # a prompt may hold anything, and nothing in it ends the question
            text = text.replace(special, "")
        whole = self.form.chat.format(self.form.picture * len(one.pictures) + text) + one.begun
        tokens = self.clip.tokenize(whole, min_length=1)
        [row] = next(iter(tokens.values())) if isinstance(tokens, dict) else tokens
        row = [part[0] for part in row]
        if self._words.pad_left:  # which Gemma 3 12B's tokenizer does, whatever it is asked
            row = [*itertools.dropwhile(self._words.pad_token.__eq__, row)]
        return row

    def _row(self, tokens: list[int], one: Asked) -> list[Any]:
        pictures = iter(one.pictures)
        return [self._picture(next(pictures)) if token == self._mark else token for token in tokens]

    def _picture(self, picture: Tensor) -> dict[str, Any]:
        """The picture as the tokenizer hands it on."""
        key = id(picture)
        shown = sized(picture, self.form.least, self.network.image_size if self.form.square else 0)
        return {"type": "image", "data": shown[None], "original_type": "image", "otca": key}

    # -- the network -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _ready(self, one: Asked, length: int, rows: int, seen: dict) -> Iterator[None]:
        """Within it the network is where it computes, and what it has `seen` of a picture is not computed again."""
        import comfy.model_management as management

        network, encoder = self.network, self.encoder
        original, look = network.preprocess_embed, self.form.look

        def remembered(embed: dict, device: torch.device) -> Any:
            embed = dict(embed)
            if (key := embed.pop("otca")) not in seen:
                seen[key] = look(network, embed["data"], device) if look else original(embed, device=device)
            return seen[key]

        management.load_models_gpu([self.clip.patcher], memory_required=self._room(one, length, rows))
        device = self.clip.patcher.load_device
        encoder.reset_clip_options()
        encoder.set_clip_options({"layer": None, "execution_device": device})
        network.preprocess_embed = remembered
        if self.form.turned:
            vars(network.model)["compute_freqs_cis"] = functools.partial(self.form.turned, network.model)
        try:
            with torch.inference_mode(), management.cuda_device_context(device):
                yield
        finally:
            del network.preprocess_embed
            network.model.__dict__.pop("compute_freqs_cis", None)

    def last_logits(self, rows: Sequence[list[Any]]) -> Tensor:
        """[B, vocabulary] float32 of the first token of each answer."""
        import comfy.model_management as management

        network, device = self.network, self.clip.patcher.load_device
        made = [self.encoder.process_tokens([row], device) for row in rows]
        dtype = torch.bfloat16 if management.should_use_bf16(device) else torch.float32
        embeds, infos = torch.cat([entry[0] for entry in made]).to(dtype), [entry[3] for entry in made]
        batch = _Batch(embeds, infos)
        with self._seen_together([(info["index"], info["size"]) for info in infos[0]]):
            x = network.model.forward(None, embeds=embeds, attention_mask=None, **self.form.more(network, batch))[0]
        last = x[:, -1:].float()
        # Not by `logits` where there is a head: of a network that needs no casting it would take the embeddings in its place.
        head = getattr(network.model, "lm_head", None)
        return (network.logits(last) if head is None else head(last))[:, -1]

    def _places(self, row: Sequence[Any]) -> list[tuple[int, int]]:
        """(first, count) of each picture's tokens, of a family that shows them together."""
        places, at = [], 0
        for part in row if self.form.together else ():
            count = 1 if isinstance(part, int) else self.network.model.config.mm_tokens_per_image
            if not isinstance(part, int):
                places.append((at, count))
            at += count
        return places

    @contextlib.contextmanager
    def _seen_together(self, places: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Within it the tokens of each picture, of which (first, count) are given, see each other, as Gemma 3 was trained;
        ComfyUI hides from each what is behind it, which moved P(yes) of a tiny model by up to 10 %."""

        def opened(layer: Any, args: tuple, given: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            mask = given["attention_mask"]
            if mask is None or mask.shape[-2] != mask.shape[-1]:  # of one token more: it sees all
                return args, given
            mask = mask.clone()
            for first, count in places:
                mask[..., first : first + count, first : first + count] = 0
            return args, {**given, "attention_mask": mask}

        layers = self.network.model.layers if self.form.together else ()
        hooks = [layer.register_forward_pre_hook(opened, with_kwargs=True) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _room(self, one: Asked, length: int, rows: int) -> int:
        """Bytes beside the weights, about: activations of a layer, the mask, the vision tower's largest layer, the head."""
        config = self.network.model.config
        pixels = sum(min(picture.shape[0] * picture.shape[1], MOST_PIXELS) for picture in one.pictures)
        whole = length + pixels // 28**2
        layer = rows * whole * (8 * config.hidden_size + 3 * config.intermediate_size) * 4 + 3 * whole**2 * 4
        tower = pixels // 14**2 * 4 * 4 * 8192
        return layer + tower + config.vocab_size * (config.hidden_size + 4 * rows) * 4


def sized(picture: Tensor, least: int = 0, side: int = 0) -> Tensor:
    """A picture [H, W, 3] as a model sees it: of `least` to MOST_PIXELS pixels, or the square that its tower was made for."""
    height, width = picture.shape[:2]
    scale = (min(max(height * width, least), MOST_PIXELS) / (height * width)) ** 0.5
    size = (side, side) if side else (max(round(height * scale), 1), max(round(width * scale), 1))
    if size == (height, width):
        return picture
    planes = picture.movedim(-1, 0)[None]
    made = torch.nn.functional.interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)
    return made[0].movedim(0, -1).clamp(0, 1)


# --- which can answer ---------------------------------------------------------------------------------------------------


def check(clip: CLIP) -> Any:
    """The encoder of a CLIP that can answer about pictures.

    Raises:
        RewardError: it cannot: named, with the reason and those that can.
    """
    kind = re.sub(r"(TE|Clip)Model_?$", "", type(clip.cond_stage_model).__name__)
    if not hasattr(clip, "generate"):
        raise RewardError(
            f"judge: this ComfyUI's text encoders write no answers. Fix: ComfyUI 0.33 or newer, with {WORKING}"
        )
    able = [part for part in clip.cond_stage_model.modules() if hasattr(getattr(part, "transformer", None), "logits")]
    if not able:
        raise _refused(kind, "only encodes text: it has nothing that writes an answer")
    network = able[0].transformer
    kind = f"{kind} ({type(network).__name__.strip('_')})"
    if not hasattr(network, "preprocess_embed"):
        raise _refused(kind, "reads text alone: its file or its loader leaves the vision tower out")
    if getattr(network.model, "norm", None) is None:
        raise _refused(kind, "is cut off before its last layers, so that it has no head to answer with")
    if not hasattr(network.model, "lm_head") and not {*_family(network)}.isdisjoint(UNTIED):
        raise _refused(kind, "was published with a head of its own, and ComfyUI answers with its embeddings instead")
    if {*_family(network)}.isdisjoint(FORMS):
        raise _refused(kind, "is of a family whose way of talking is not known here")
    return able[0]


def _family(network: Any) -> list[str]:
    return [kind.__name__ for kind in type(network).__mro__]


def _refused(kind: str, reason: str) -> RewardError:
    return RewardError(f"judge: the text encoder of {kind} {reason}. Fix: load {WORKING} by CLIPLoader")
