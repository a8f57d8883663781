"""Train on these: the workflow that is written, its cost, and that it is a graph that trains."""

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from comfyui_otca.tests.trainer.opinions.conftest import give_pairs
from comfyui_otca.trainer.memory.case import TRIAL_CALLS
from comfyui_otca.trainer.opinions import recipe
from comfyui_otca.trainer.opinions.reading import PairError
from comfyui_otca.trainer.workflow.running import Workflow


@pytest.fixture
def store(gallery):
    """Ten prompts with two pictures each, in pairs (ids in `store.ids`)."""
    ids = gallery(20, [f"prompt {number // 2}\nin two lines" for number in range(20)])
    gallery.store.ids = ids
    give_pairs(gallery.store, zip(ids[::2], ids[1::2], strict=True))
    return gallery.store


def inputs(found, kind):
    return next(entry["inputs"] for entry in found.graph.values() if entry["class_type"] == f"OTCA_{kind}")


def test_the_workflow_of_chosen_pictures_by_their_tag_and_its_cost_by_hand(store):
    """14 pictures are 7 pairs, some of them held out; 8 passes of 8 to an iteration are fewer than 20 iterations. Each has 16
    samples at 4 of 8 levels, and each of these 1 call of the untrained model and 3 of the trained one."""
    found = recipe.write(store, store.ids[:14])
    mine = inputs(found, "MyPictures")
    assert (mine["tag"], mine["folder"], mine["learn_from"]) == ("train", "", "pairs")
    assert found.items + found.held_out == 7 and found.items >= 4
    assert (inputs(found, "TrainingRun")["iterations"], found.forwards) == (20, 20 * 16 * 4 * 4 + TRIAL_CALLS)
    assert found.said[0].startswith("That is few") and len(found.said) == 2  # the page says the counts itself
    assert "OTCA_RewardColorfulness" in {entry["class_type"] for entry in found.graph.values()}
    prompts = inputs(found, "TrainingRun")["evaluation_prompts"].split("\n")
    assert len(prompts) == 7 and all(prompt.endswith(" in two lines") for prompt in prompts)
    problems = Workflow(found.graph, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS).validate()
    errors = [str(problem) for problem in problems if problem.severity == "error"]  # ComfyUI is not here, and no more
    assert all("ComfyUI is not here" in error or "needs ComfyUI for" in error for error in errors)


def test_the_tag_moves_with_the_choice(store):
    recipe.write(store, store.ids[:14])
    recipe.write(store, store.ids[4:])
    assert {opinion.picture for opinion in store.standing("tag")} == set(store.ids[4:])


def test_pictures_without_one_to_compare_are_learned_from_alone(store):
    chosen = store.ids[::2]
    store.give([{"kind": "thumb", "picture": name, "value": 1} for name in chosen])
    found = recipe.write(store, chosen)
    assert found.learn_from == inputs(found, "MyPictures")["learn_from"] == "pictures"
    assert inputs(found, "MatchingStep")["loss"] == "nft"


def test_too_few_are_refused(store):
    with pytest.raises(PairError, match="too few to train on"):
        recipe.write(store, store.ids[:2])
    with pytest.raises(ValueError, match="no template for the model 'x'"):
        recipe.write(store, [], "x")


@pytest.mark.parametrize("model", [name for name in recipe.MODELS if name != recipe.TEMPLATE])
def test_each_models_own_loaders_and_size_take_the_place_of_the_tiny_ones(store, model):
    found = recipe.write(store, [], model)
    mine, theirs = inputs(found, "MyPictures"), recipe._read(model)
    sampler = next(entry["inputs"] for entry in theirs.values() if entry["class_type"] == "OTCA_SDESampler")
    assert (mine["width"], mine["height"], mine["guidance"]) == (
        sampler["width"],
        sampler["height"],
        sampler["guidance"],
    )
    kinds = [entry["class_type"] for entry in found.graph.values()]
    assert "UNETLoader" in kinds and "VAELoader" in kinds and "OTCA_EmbeddedModel" not in kinds
    assert all(
        value[0] in found.graph
        for entry in found.graph.values()
        for value in entry["inputs"].values()
        if isinstance(value, list)
    )
    assert found.tag == "" and found.items + found.held_out == 10
