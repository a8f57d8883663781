"""Tiny vision-language models as ComfyUI's CLIP objects, and what transformers computes of the same weights."""

from __future__ import annotations

import csv
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import torch
from PIL import Image
from torch import Tensor

from comfyui_otca.tests.comfyui import tiny
from comfyui_otca.tests.comfyui.native.made import attribute
from comfyui_otca.tests.comfyui.tiny.weights import fill
from comfyui_otca.trainer.networks import RewardError
from comfyui_otca.trainer.networks.answers import Answers, Asked, Reading

VISION = {"hidden_size": 32, "intermediate_size": 48, "depth": 3, "num_heads": 4}
TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
QUESTION = "Does this picture show a red circle?"


def qwen3vl(tied: bool = True):
    from comfy.text_encoders import qwen3vl

    kind = "qwen3vl_4b" if tied else "qwen3vl_8b"
    fields = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2}

    def small(**known):
        return type("Small", (before,), {"head_dim": 128})(**{**fields, **known})

    before = qwen3vl.QWEN3VL_CONFIGS[kind]
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(attribute(qwen3vl, "QWEN3VL_CONFIGS", {kind: small}))
        enter(attribute(qwen3vl, "QWEN3VL_VISION", {kind: {**VISION, "deepstack_visual_indexes": [0, 1]}}))
        enter(attribute(qwen3vl, "QWEN3VL_VISION_COMMON", {**qwen3vl.QWEN3VL_VISION_COMMON, "num_heads": 4}))
        clip = built(qwen3vl, kind)
    fill(clip.cond_stage_model, 1)
    return clip


def built(family, kind: str):
    """The CLIP of one of ComfyUI's modules of text encoders."""
    import comfy.sd
    import comfy.supported_models_base

    target = comfy.supported_models_base.ClipTarget(
        family.tokenizer(model_type=kind), family.te(dtype_llama=torch.float32, model_type=kind)
    )
    target.params = {}
    return comfy.sd.CLIP(target)


def transformers_qwen3vl(clip, tied: bool = True):
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    config = Qwen3VLConfig(
        text_config={
            **TEXT,
            "vocab_size": 151936,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
            },
            "rms_norm_eps": 1e-6,
        },
        vision_config={
            **VISION,
            "patch_size": 16,
            "out_hidden_size": TEXT["hidden_size"],
            "deepstack_visual_indexes": [0, 1],
            "num_position_embeddings": 2304,
        },
        tie_word_embeddings=tied,
    )
    return loaded(Qwen3VLForConditionalGeneration(config), clip, tied)


def qwen35(tied: bool = True):
    from comfy.text_encoders import qwen35

    kind = "qwen35_2b"
    small = {
        **TEXT,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "lm_head": not tied,
        **LINEAR,
        "vision": VISION,
    }
    with attribute(qwen35, "QWEN35_MODELS", {kind: small}), TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(qwen35.__file__)
        if not (place.parent / "qwen35_tokenizer" / "vocab.json").exists():
            stack.enter_context(attribute(qwen35, "__file__", _with_vocabulary(place, Path(folder))))
        clip = built(qwen35, kind)
    fill(clip.cond_stage_model, 2)
    return clip


def _with_vocabulary(place: Path, folder: Path) -> str:
    """Some copies of ComfyUI lack this file, the largest: here each merge is a word, in their order."""
    made = Path(shutil.copytree(place.parent / "qwen35_tokenizer", folder / "qwen35_tokenizer"))
    beginning = json.loads((place.parent / "qwen25_tokenizer" / "vocab.json").read_text(encoding="utf-8"))
    single = sorted(beginning, key=beginning.get)[:256]
    merges = (made / "merges.txt").read_text(encoding="utf-8").splitlines()
    words = single + [line.replace(" ", "") for line in merges if line and not line.startswith("#version")]
    added = json.loads((made / "tokenizer_config.json").read_text(encoding="utf-8"))["added_tokens_decoder"]
    words += [f"<none {n}>" for n in range(len(words), min(map(int, added)))]
    (made / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}), encoding="utf-8")
    return str(folder / place.name)


def transformers_qwen35(clip, tied: bool = True):
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    config = Qwen3_5Config(
        text_config={
            **TEXT,
            "vocab_size": 248320,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_conv_kernel_dim": 4,
            **LINEAR,
            "tie_word_embeddings": tied,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e7,
                "mrope_section": [11, 11, 10],
                "mrope_interleaved": True,
                "partial_rotary_factor": 0.25,
            },
        },
        vision_config={
            **VISION,
            "patch_size": 16,
            "out_hidden_size": TEXT["hidden_size"],
            "num_position_embeddings": 2304,
        },
        tie_word_embeddings=tied,
    )
    return loaded(Qwen3_5ForConditionalGeneration(config), clip, tied)


SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 112,
    "patch_size": 14,
}
GEMMA_PICTURE = 16  # tokens
GEMMA_SPECIAL = {"<image_soft_token>": 262144, "<end_of_turn>": 106}  # what ComfyUI's tokenizer adds


def gemma3(large: bool):
    """Gemma 3 as a CLIPLoader gives it: the one of 4B with a vision tower, or of 12B."""
    import sentencepiece
    from comfy.text_encoders import llama, lt, lumina2

    class Written:
        def __init__(self):
            self.bytes = b""

        def write(self, data):
            self.bytes += data

    written = Written()
    words = ["yes", "no", "Yes", "No", "YES", "NO", "\u2581yes", "\u2581no"]
    marks = ["<start_of_turn>", "<start_of_image>", "<end_of_image>", "\n", *words]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["user model Does this picture show a red circle? The answer is", QUESTION] * 20),
        model_writer=written,
        vocab_size=80,
        hard_vocab_limit=False,
        model_type="char",
        user_defined_symbols=marks,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    small = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2}
    kind = "Gemma3_12B_Config" if large else "Gemma3_4B_Vision_Config"
    known = getattr(llama, kind)
    made = type("Small", (known,), {"vision_config": {**llama.GEMMA3_VISION_CONFIG, **SIGLIP}, "head_dim": 256})
    made.mm_tokens_per_image = GEMMA_PICTURE
    module, tokenizer = (lt, lt.Gemma3_12BTokenizer) if large else (lumina2, lumina2.NTokenizer)
    settings = {} if large else {"model_type": "gemma3_4b_vision"}
    encoder = (lt.gemma3_te if large else lumina2.te)(dtype_llama=torch.float32, **settings)
    with attribute(llama, kind, lambda **given: made(**{**small, **given})):
        import comfy.sd
        import comfy.supported_models_base

        target = comfy.supported_models_base.ClipTarget(tokenizer, encoder)
        target.params = {}
        clip = comfy.sd.CLIP(target, tokenizer_data={"spiece_model": written.bytes})
    fill(clip.cond_stage_model, 3)
    return clip


def transformers_gemma3(clip):
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    few = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 262208}
    kinds = [*["sliding_attention"] * 5, "full_attention"]
    turns = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = Gemma3Config(
        text_config={
            **few,
            "layer_types": [kinds[n % 6] for n in range(TEXT["num_hidden_layers"])],
            "sliding_window": 1024,
            "query_pre_attn_scalar": 256,
            "rope_parameters": turns,
        },
        vision_config={**SIGLIP, "vision_use_head": False},
        mm_tokens_per_image=GEMMA_PICTURE,
        image_token_index=262144,
        boi_token_index=4,
        eoi_token_index=5,
    )
    model = Gemma3ForConditionalGeneration(config)
    names = {}
    for name, value in Answers(clip).network.state_dict().items():
        if name.startswith("model."):
            names["model.language_model." + name.removeprefix("model.")] = value
        elif name.startswith("vision_model."):
            names["model.vision_tower." + name.removeprefix("vision_model.")] = value
        else:
            names["model." + name] = value
    missing, unexpected = model.load_state_dict(names, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.eval()


def gemma_as_transformers(family: str, large: bool) -> dict:
    """P(yes) of one picture and of two, batched, single, and by transformers, whose tokens are put together by hand."""
    clip = gemma3(large)
    answers, model = Answers(clip), transformers_gemma3(clip)
    words = getattr(clip.tokenizer, "gemma3_4b", clip.tokenizer).tokenizer.tokenizer
    seen = [(picture * 255).round() / 255 for picture in pictures(3, SIGLIP["image_size"], SIGLIP["image_size"])]
    asked = [Asked((picture,), QUESTION) for picture in seen] + [Asked((seen[0], seen[2]), QUESTION, "The answer is")]
    found, before = [], []
    for one in asked:
        ids = [2, *words.encode("<start_of_turn>user\n", add_bos=False)]
        for _ in one.pictures:
            ids += words.encode("\n\n<start_of_image>", add_bos=False) + [262144] * GEMMA_PICTURE
            ids += words.encode("<end_of_image>\n\n", add_bos=False)
        ids += [*words.encode(one.text, add_bos=False), 106]
        ids += words.encode(f"\n<start_of_turn>model\n{one.begun}", add_bos=False)
        ids = torch.tensor([ids])
        pixels = torch.stack([2 * picture.movedim(-1, 0) - 1 for picture in one.pictures])
        kinds = (ids == 262144).long()
        with torch.no_grad():
            for together, kept in ((kinds, found), (torch.zeros_like(kinds), before)):
                logits = model(input_ids=ids, pixel_values=pixels, token_type_ids=together).logits
                chances = logits[0, -1].softmax(-1)
                ways = [[words.piece_to_id(way) for way in GEMMA_WAYS[meant]] for meant in ("yes", "no")]
                mass = [chances[way].sum().item() for way in ways]
                kept.append(mass[0] / sum(mass))
    batched, single = readings(answers, asked), readings(answers, asked, 1)
    hooks = sum(len(layer._forward_pre_hooks) for layer in answers.network.model.layers)
    return {"batched": batched, "single": single, "transformers": found, "causal": before, "hooks": hooks}


GEMMA_WAYS = {"yes": ("yes", "Yes", "YES", "\u2581yes"), "no": ("no", "No", "NO", "\u2581no")}


def loaded(model, clip, tied: bool):
    """The same weights under transformers' names."""
    names = {}
    for name, value in Answers(clip).network.state_dict().items():
        if name.startswith("model.lm_head"):
            names[name.removeprefix("model.")] = value
        elif name.startswith("model."):
            names["model.language_model." + name.removeprefix("model.")] = value
        else:
            names["model." + name] = value
    missing, unexpected = model.load_state_dict(names, strict=False)
    assert not unexpected and set(missing) <= ({"lm_head.weight"} if tied else set()), (missing, unexpected)
    if tied:
        model.tie_weights()
    return model.eval()


def patches(picture: Tensor, size: int = 16) -> tuple[Tensor, Tensor]:
    """[patches, 3·2·size²] of colours in [-1, 1] and the grid, by loops: two equal frames, patches in blocks of two by two."""
    height, width = picture.shape[0] // size, picture.shape[1] // size
    plain = 2 * picture - 1
    rows = []
    for top in range(0, height, 2):
        for left in range(0, width, 2):
            for y in (top, top + 1):
                for x in (left, left + 1):
                    block = plain[y * size : (y + 1) * size, x * size : (x + 1) * size].permute(2, 0, 1)
                    rows.append(torch.stack([block, block], 1).flatten())
    return torch.stack(rows), torch.tensor([[1, height, width]])


FAMILIES = {"Qwen3VL": (qwen3vl, transformers_qwen3vl), "Qwen35": (qwen35, transformers_qwen35)}


def pictures(count: int, height: int = 256, width: int = 288) -> list[Tensor]:
    return [torch.rand(height, width, 3, generator=torch.Generator().manual_seed(n)) for n in range(count)]


def readings(answers: Answers, asked: list[Asked], batch_size: int = 0) -> list[float]:
    """P(yes) / (P(yes) + P(no)) of each question."""
    found: dict[int, Reading] = {}
    for part in answers.ask(asked, ["yes", "no"], batch_size):
        found |= part
    return [found[n].mass[0] / sum(found[n].mass) for n in range(len(asked))]


def as_transformers(family: str, tied: bool) -> dict:
    """P(yes) of one picture and of two, batched, single, and by transformers on the same weights."""
    make, theirs = FAMILIES[family]
    clip = make(tied)
    answers, model = Answers(clip), theirs(clip, tied)
    seen = pictures(3)
    asked = [Asked((picture,), QUESTION) for picture in seen] + [Asked((seen[0], seen[2]), QUESTION, "The answer is ")]
    tokenizer = getattr(clip.tokenizer, clip.tokenizer.clip).tokenizer
    yes, no = ([tokenizer(word)["input_ids"] for word in WAYS[meant]] for meant in ("yes", "no"))
    found = []
    for one in asked:
        places = "".join(f"<|vision_start|>{'<|image_pad|>' * 72}<|vision_end|>" for _ in one.pictures)
        thought = "<think>\n\n</think>\n\n" if family == "Qwen35" else ""
        text = f"<|im_start|>user\n{places}{one.text}<|im_end|>\n<|im_start|>assistant\n{thought}{one.begun}"
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        values, grid = (torch.cat(each) for each in zip(*map(patches, one.pictures), strict=True))
        image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        with torch.no_grad():
            logits = model(
                input_ids=ids,
                pixel_values=values,
                image_grid_thw=grid,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=(ids == image).int(),
            ).logits
        chances = logits[0, -1].softmax(-1)
        mass = [sum(chances[way[0]].item() for way in ways if len(way) == 1) for ways in (yes, no)]
        found.append(mass[0] / sum(mass))
    batched, single = readings(answers, asked), readings(answers, asked, 1)
    left = [name for name in ("preprocess_embed",) if name in vars(answers.network)]
    return {"batched": batched, "single": single, "transformers": found, "left": left}


WAYS = {"yes": ("yes", "Yes", "YES", " yes", " Yes", " YES"), "no": ("no", "No", "NO", " no", " No", " NO")}


def looks(family: str) -> dict:
    """How often the vision tower is asked where four pictures are in twelve questions."""
    clip = FAMILIES[family][0]()
    answers, seen = Answers(clip), pictures(4, 256, 256)
    counted, network = [], answers.network
    tower, before = network.visual, network.visual.forward
    tower.forward = lambda *args, **kwargs: counted.append(1) or before(*args, **kwargs)
    readings(answers, [Asked((one, other), QUESTION) for one in seen for other in seen if one is not other], 3)
    return {"looks": len(counted)}


def answering(clip, certain: float = 30.0):
    """The same CLIP, whose answer is yes or no by the pictures: the head knows no other word."""
    answers = Answers(clip)
    kept: list[Tensor] = []
    head = answers.network.model.lm_head
    before = head.forward
    head.forward = lambda x: kept.append(x) or before(x)
    try:
        readings(answers, [Asked((picture,), QUESTION) for picture in pictures(4, 64, 64)])
    finally:
        del head.forward
    mean = torch.cat(kept)[:, -1].mean(0)
    turn = torch.randn(mean.shape, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        head.weight.zero_()
        for word, sign in (("yes", 1), ("no", -1)):
            head.weight[answers.spellings(word)] = certain * mean / (mean @ mean) + sign * turn / 8
    return clip


def scored(family: str) -> dict:
    """The reward itself: by itself and as a group, of the same pictures; a picture that is broken, and Stop in the middle."""
    from comfyui_otca.host import stopping
    from comfyui_otca.trainer.rewards.base import score
    from comfyui_otca.trainer.rewards.clip_judge import ClipJudge

    clip = answering(qwen3vl(tied=False))
    seen = torch.stack(pictures(10, 64, 64))
    prompts = ["a red circle"] * len(seen)
    judge = ClipJudge(judge=clip, question="Is this {prompt}?", batch_size=4)
    whole = score([judge], seen, prompts)[:, 0].tolist()
    broken = seen.clone()
    broken[3] = torch.nan
    others = score([ClipJudge(judge=clip, question="Is this {prompt}?", batch_size=4)], broken, prompts)[:, 0]
    fresh = ClipJudge(judge=clip, question="Is this {prompt}?", batch_size=2)
    passes, forward = [], fresh.answers.last_logits
    fresh.answers.last_logits = lambda rows: passes.append(len(rows)) or forward(rows)

    def stop(total):
        left = iter(range(5))

        def step():
            if next(left, None) is None:
                raise stopping.Stopped("asked to")

        return step

    progress, stopping.progress = stopping.progress, stop
    try:
        score([fresh], seen, prompts)
        stopped = False
    except stopping.Stopped:
        stopped = True
    finally:
        stopping.progress = progress
    before = sum(passes)
    again = score([fresh], seen, prompts)[:, 0].tolist()
    return {
        "whole": whole,
        "again": again,
        "stopped": stopped,
        "asked": [before, sum(passes)],
        "others": others.nan_to_num(-1).tolist(),
    }


def by_command(family: str, command: str, folder: str) -> dict:
    """What `otca score` or `otca eval` says of pictures by a judge from a file, and what that judge says of them by itself."""
    import comfy.sd

    from comfyui_otca.__main__ import main
    from comfyui_otca.trainer.pictures.media import read
    from comfyui_otca.trainer.rewards.base import score
    from comfyui_otca.trainer.rewards.clip_judge import ClipJudge

    place, clip = Path(folder), answering(qwen3vl(tied=False))
    file = place / "judge.safetensors"
    file.touch()
    loaded: list[str] = []

    def load_clip(paths: list[str]):
        loaded.extend(paths)
        return clip  # ComfyUI knows a file's family by the sizes of published models, so that a tiny one is none

    question = "Is this {prompt}?"
    reward = ["--reward", f"clip_judge:judge={file},question={question}", "--comfyui", str(Path.cwd())]
    with attribute(comfy.sd, "load_clip", load_clip):
        if command == "score":
            named = [place / f"{n}.png" for n in range(3)]
            for number, picture in enumerate(pictures(3, 64, 64)):
                Image.fromarray((picture.numpy() * 255).round().astype("uint8")).save(named[number])
            made = [*map(str, named), "--prompt", "a red circle", "--csv", str(place / "scores.csv")]
            code = main(["score", *made, *reward])
            with (place / "scores.csv").open() as table:
                found = [float(row["vlm_judge"]) for row in csv.DictReader(table)]
            prompts = ["a red circle"] * 3
        else:
            (place / "prompts.txt").write_text("a red circle\na blue square\n")
            more = [
                "--prompts",
                str(place / "prompts.txt"),
                "--steps",
                "2",
                "--seeds",
                "2",
                "--output",
                str(place / "made"),
            ]
            code = main(["eval", "shapes-flux", "--size", "32x32", *more, *reward])
            rows = [json.loads(line) for line in (place / "made" / "scores.jsonl").read_text().splitlines()]
            found = [row["scores"]["vlm_judge"] for row in rows]
            named = [place / "made" / "pictures" / row["method"] / row["file"] for row in rows]
            prompts = [row["prompt"] for row in rows]
    seen = torch.stack([torch.from_numpy(read(path).copy()) for path in named]).float() / 255
    itself = score([ClipJudge(judge=clip, question=question)], seen, prompts)[:, 0].tolist()
    return {"code": code, "found": found, "itself": itself, "loaded": loaded == [str(file)]}


def no_file(family: str) -> dict:
    """What is said of a text encoder that is not there."""
    from comfyui_otca.host import headless_comfyui

    try:
        headless_comfyui.text_encoder("nowhere.safetensors")
    except ValueError as error:
        return {"told": str(error)}
    return {"told": ""}


def leaves(family: str) -> dict:
    """Whether ComfyUI holds the judge's model as loaded: after a question, when room was made, and after one with offload."""
    import comfy.model_management as management

    from comfyui_otca.host import devices
    from comfyui_otca.trainer.rewards.base import score
    from comfyui_otca.trainer.rewards.clip_judge import ClipJudge

    clip = answering(qwen3vl(tied=False))

    def asked(offload: bool, name: str) -> bool:
        score([ClipJudge(name, judge=clip, question="Is it?", offload=offload)], torch.stack(pictures(1, 64, 64)), [""])
        return held()

    def held() -> bool:
        return any(each.model is clip.patcher for each in management.current_loaded_models)

    after = asked(False, "stays")
    devices.make_room()
    return {"asked": after, "room": held(), "offload": asked(True, "leaves")}


def unanswered(family: str) -> dict:
    """What is said where yes and no have no probability, and where the numbers are NaN."""
    from comfyui_otca.trainer.rewards.base import score
    from comfyui_otca.trainer.rewards.clip_judge import ClipJudge

    def told(clip) -> str:
        try:
            score([ClipJudge(judge=clip, question="Is it?")], torch.stack(pictures(2, 64, 64)), ["", ""])
        except RewardError as error:
            return str(error)
        return ""

    clip = qwen3vl()
    indifferent = told(clip)
    with torch.no_grad():
        clip.cond_stage_model.qwen3vl_4b.transformer.model.norm.weight.fill_(torch.nan)
    return {"indifferent": indifferent, "nan": told(clip)}


def refused_judges(family: str) -> dict:
    """What each text encoder that cannot answer is told, by its name here."""
    from comfy.text_encoders import flux, ideogram4, llama, minimax, qwen_image, qwen_vl, sd3_clip
    from comfy.text_encoders import qwen3vl as theirs

    class Small(llama.Qwen3_8BConfig):
        pass

    found = {}

    def told(name: str, encoder) -> None:
        try:
            Answers(SimpleNamespace(cond_stage_model=encoder, generate=None, tokenizer=None))
        except RewardError as error:
            found[name] = str(error)

    few = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 128}
    with ExitStack() as stack:
        for config in ("Qwen3_4BConfig", "Qwen3_8BConfig", "Qwen25_7BVLI_Config"):
            known = getattr(llama, config)
            stack.enter_context(attribute(llama, config, lambda known=known, **given: known(**{**given, **few})))
        tower = qwen_vl.Qwen2VLVisionTransformer
        stack.enter_context(
            attribute(qwen_vl, "Qwen2VLVisionTransformer", lambda **given: tower(**{**given, "num_layers": 1}))
        )
        kept = theirs.QWEN3VL_CONFIGS["qwen3vl_32b"]
        config = {"qwen3vl_32b": lambda **given: kept(**{**given, **few})}
        stack.enter_context(attribute(theirs, "QWEN3VL_CONFIGS", config))
        stack.enter_context(
            attribute(theirs, "QWEN3VL_VISION", {"qwen3vl_32b": {**VISION, "deepstack_visual_indexes": [0]}})
        )
        stack.enter_context(
            attribute(theirs, "QWEN3VL_VISION_COMMON", {**theirs.QWEN3VL_VISION_COMMON, "num_heads": 4})
        )
        told("klein", flux.klein_te(dtype_llama=torch.float32)())
        told("Ideogram 4", ideogram4.te(dtype_llama=torch.float32)())
        told("MiniMax H3", minimax.te(dtype_llama=torch.float32)())
        told("Qwen-Image", qwen_image.te(dtype_llama=torch.float32)())
    told("SD3", sd3_clip.sd3_clip(clip_l=False, clip_g=False, t5=False)())
    return found


def too_old(family: str) -> dict:
    """What a CLIP of a ComfyUI is told that has no text encoders which answer."""
    try:
        Answers(tiny.build(family).clip)
    except RewardError as error:
        return {"told": str(error)}
    return {"told": ""}
