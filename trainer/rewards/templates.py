"""Questions that are ready to be asked, and those that published judges were trained on, word by word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SOURCE = "{source}"
GRADES = ("1", "2", "3", "4", "5")
WRITTEN = "written"  # how an answer is read that begins with its reasons
LIST = re.compile(r'"?score"?\s*:\s*\[([^][]*)\]')
MOST = 25  # of a score in such a list


@dataclass(frozen=True)
class Template:
    """The question about a picture or of two, and how the answer is read.

    Attributes:
        text: {prompt} stands for the prompt, {source} for the picture that was edited.
        answer: yes_no: how likely yes is. grade: the expected grade from 1 to 5. which: how likely the first of two pictures is.
            share: the expected share, from 0 to 1, that the first of two pictures gets. written: the answer is written out,
            token by token, and the lowest score of the list in it counts, see `lowest_written`.
        begun: how the answer begins; its next token is looked at.
        decimals: of the number that is answered.
        sees_source: the picture that was edited comes before the others.
        credit: whose words they are, and where they stand.
    """

    text: str
    answer: str = "yes_no"
    begun: str = ""
    decimals: int = 0
    sees_source: bool = False
    credit: str = ""

    @property
    def compares(self) -> bool:
        return self.answer in ("which", "share")


UNIFIED = "CodeGoat24/UnifiedReward, MIT, "
_UNIFIED_TASK = "Your task is provided as follows:\nText Caption: [{prompt}]"
_EDIT_PAIR = (
    "You are tasked with comparing two edited images and determining which one is better based on the given criteria.\n\n"
    "The evaluation will consider how well each model executed the instructions and the overall quality of the edit, "
    "including its visual appeal.\n\n**Inputs Provided:**\n- Source Image (before editing)\n"
    "- Edited Image 1 (after applying the instruction)\n- Edited Image 2 (after applying the instruction)\n"
    "- Text Instruction\n\n### Evaluation Criteria for Each Image:\n\n1. **Instruction Fidelity**  \n"
    "Assess how accurately the edits align with the given instruction. The following aspects should be considered:\n"
    "- **Semantic Accuracy:** Does the edited image reflect the correct objects and changes as described in the "
    'instruction? For example, if instructed to replace "apples with oranges," ensure that oranges appear instead of '
    "other fruits.\n- **Completeness of Changes:** Ensure all parts of the instruction are fully addressed. For "
    "multi-step instructions, verify that every change is made as specified.\n- **Exclusivity of Changes:** Confirm that "
    "only the specified changes were made. Other elements of the image should remain consistent with the original.\n\n"
    "2. **Visual Integrity & Realism**  \nEvaluate the visual quality of the edited image, taking into account technical "
    "accuracy and aesthetic appeal:\n- **Realism & Physical Consistency:** Does the edit respect the laws of physics and "
    "scene consistency, including lighting, shadows, and perspective?\n- **Artifact-Free Quality:** Look for any "
    "technical flaws such as blurring, pixel misalignment, unnatural textures, or visible seams. The image should be "
    "clean and free from distractions.\n- **Aesthetic Harmony:** The image should maintain a pleasing visual balance, "
    "with careful attention to composition, color harmony, and overall appeal. The changes should enhance the image "
    "rather than detract from it.\n\n### Final Output:\nBased on the above evaluation, determine which edited image is "
    "better.\n\nText instruction - {prompt}\n"
)

_ARTIST = (
    "You are a professional digital artist. You will have to evaluate the effectiveness of the AI-generated image(s) based on "
    "given rules.\nAll the input images are AI-generated. All human in the images are AI-generated too. so you need not worry "
    "about the privacy confidentials.\n\nIMPORTANT: You will have to give your output in this way (Keep your reasoning concise "
    'and short.):\n{\n\n"reasoning" : "...",\n"score" : [...],\n}\n\nRULES:\n\n'
)
_EDIT_INSTRUCTION = _ARTIST + (
    "Two images will be provided: The first being the original AI-generated image and the second being an edited "
    "version of the first.\nThe objective is to evaluate how successfully the editing instruction has been executed "
    "in the second image.\n\nNote that sometimes the two images might look identical due to the failure of image "
    "edit.\n\n\nFrom scale 0 to 25: \nA score from 0 to 25 will be given based on the success of the editing. (0 "
    "indicates that the scene in the edited image does not follow the editing instruction at all. 25 indicates that "
    "the scene in the edited image follow the editing instruction text perfectly.)\nA second score from 0 to 25 will "
    "rate the degree of overediting in the second image. (0 indicates that the scene in the edited image is "
    "completely different from the original. 25 indicates that the edited image can be recognized as a minimal "
    "edited yet effective version of original.)\nPut the score in a list such that output score = [score1, score2], "
    "where 'score1' evaluates the editing success and 'score2' evaluates the degree of overediting.\n\nEditing "
    "instruction:{prompt}\n"
)
_EDIT_QUALITY = _ARTIST + (
    "The image is an AI-generated image.\nThe objective is to evaluate how successfully the image has been "
    "generated.\n\nFrom scale 0 to 25: \nA score from 0 to 25 will be given based on image naturalness. \n(\n    0 "
    "indicates that the scene in the image does not look natural at all or give a unnatural feeling such as wrong "
    "sense of distance, or wrong shadow, or wrong lighting. \n    25 indicates that the image looks natural.\n)\nA "
    "second score from 0 to 25 will rate the image artifacts. \n(\n    0 indicates that the image contains a large "
    "portion of distortion, or watermark, or scratches, or blurred faces, or unusual body parts, or subjects not "
    "harmonized. \n    25 indicates the image has no artifacts.\n)\nPut the score in a list such that output score = "
    "[naturalness, artifacts]\n"
)

TEMPLATES: Mapping[str, Template] = {
    "content": Template("Does this picture show everything that this text asks for: {prompt}?"),
    "text": Template("Is every word that this text wants written in the picture there, and spelled right: {prompt}?"),
    "count and place": Template(
        "Does this picture show as many of each thing as this text says, each where the text says: {prompt}?"
    ),
    "aesthetics": Template("How beautiful is this picture, from 1 (ugly) to 5 (beautiful)?", "grade"),
    "same person": Template("Do {source} and the last picture show the same person?", sees_source=True),
    "edit followed": Template(
        "The last picture was made from {source}. Does it follow this instruction: {prompt}?", sees_source=True
    ),
    "rest kept": Template(
        "The last picture was made from {source} by this instruction: {prompt}. Is everything that the instruction does "
        "not name the same in both?",
        sees_source=True,
    ),
    "which is better": Template(
        "Which of these two pictures shows this better, picture 1 or picture 2: {prompt}?", "which", "Picture "
    ),
    "UnifiedReward-2.0 alignment": Template(
        "You are presented with a generated image and its associated text caption. "
        "Your task is to analyze the image across multiple dimensions in relation to the caption. Specifically:\n"
        "Provide overall assessments for the image along the following axes (each rated from 1 to 5):\n"
        "- Alignment Score: How well the image matches the caption in terms of content.\n"
        "- Coherence Score: How logically consistent the image is (absence of visual glitches, object distortions, etc.).\n"
        "- Style Score: How aesthetically appealing the image looks, regardless of caption accuracy.\n\n"
        "Output your evaluation using the format below:\n\n"
        "Alignment Score (1-5): X\nCoherence Score (1-5): Y\nStyle Score (1-5): Z\n\n" + _UNIFIED_TASK,
        "grade",
        "Alignment Score (1-5): ",
        1,
        credit=UNIFIED + "inference_qwen/UnifiedReward-2.0-inference/point_score_ACS_image_generation.py",
    ),
    "UnifiedReward-2.0 pair alignment": Template(
        "You are presented with two generated images (Image 1 and Image 2) along with a shared text caption. "
        "Your task is to comparatively evaluate the two images across three specific dimensions:\n\n"
        "- Alignment Score: How well each image matches the caption in terms of content.\n"
        "- Coherence Score: How logically consistent and visually coherent each image is (absence of visual glitches, "
        "distorted objects, etc.).\n"
        "- Style Score: How aesthetically appealing each image is, regardless of caption accuracy.\n\n"
        "For each dimension, you must assign a relative score to Image 1 and Image 2, such that:\n"
        "- Each score is a float between 0 and 1 (inclusive).\n"
        "- The scores for Image 1 and Image 2 must sum to exactly 1.0 for each dimension.\n"
        "- The higher the score, the better that image is in the corresponding dimension *relative to the other*.\n\n"
        "This format emphasizes comparative quality rather than absolute evaluation.\n\n"
        "Please provide your evaluation in the format below:\n\n"
        "Alignment Score:\n Image 1: X\n Image 2: Y\n\nCoherence Score:\n Image 1: X\n Image 2: Y\n\n"
        "Style Score:\n Image 1: X\n Image 2: Y\n\n" + _UNIFIED_TASK,
        "share",
        "Alignment Score:\n Image 1: ",
        2,
        credit=UNIFIED + "inference_qwen/UnifiedReward-2.0-inference/pair_score_image_generation.py",
    ),
    "UnifiedReward pair": Template(
        "You are given a text caption and two generated images based on that caption. Your task is to evaluate and compare "
        "these images based on two key criteria:\n1. Alignment with the Caption: Assess how well each image aligns with the "
        "provided caption. Consider the accuracy of depicted objects, their relationships, and attributes as described in "
        "the caption.\n2. Overall Image Quality: Examine the visual quality of each image, including clarity, detail "
        "preservation, color accuracy, and overall aesthetic appeal.\nCompare both images using the above criteria and "
        "select the one that better aligns with the caption while exhibiting superior visual quality.\nProvide a clear "
        'conclusion such as "Image 1 is better.", "Image 2 is better." and "Both images are equally good."\n'
        + _UNIFIED_TASK,
        "which",
        "Image ",
        credit=UNIFIED + "inference_qwen/image_generation/qwen_pair_rank_image_generation.py",
    ),
    "UnifiedReward-Edit pair": Template(
        _EDIT_PAIR,
        "which",
        "Edited image ",
        sees_source=True,
        credit=UNIFIED + "UnifiedReward-Edit/edit_pairwise_rank.py; how its answer begins: CodeGoat24/Pref-GRPO",
    ),
    "UnifiedReward-Edit instruction": Template(
        _EDIT_INSTRUCTION,
        WRITTEN,
        sees_source=True,
        credit=UNIFIED + "UnifiedReward-Edit/edit_pointwise_instruction_following.py",
    ),
    "UnifiedReward-Edit quality": Template(
        _EDIT_QUALITY, WRITTEN, credit=UNIFIED + "UnifiedReward-Edit/edit_pointwise_quality.py"
    ),
}


def lowest_written(text: str) -> float | None:
    """The lowest of the two scores in an answer like `{"reasoning": "…", "score": [20, 23]}`, over MOST; None if it has none.

    The lowest, as VIEScore does, whose questions these are (Ku et al., 2312.14867).
    """
    numbers = LIST.findall(text)
    try:
        scores = [float(part) for part in numbers[-1].split(",")] if numbers else []
    except ValueError:
        return None
    return min(scores) / MOST if len(scores) == 2 and all(0 <= score <= MOST for score in scores) else None
