"""TCD by other measures of progress, against numbers computed another way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.credit.proxies import PROXIES, similarity
from comfyui_otca.trainer.credit.steps import from_similarity, similarity_gain, tcd
from comfyui_otca.trainer.networks import features
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import score_stack
from comfyui_otca.trainer.workflow.running import Workflow

SPECIFIC = [name for name, needs in PROXIES.items() if needs]


@pytest.fixture(scope="module")
def rollout_of(still_model, sample):
    """Two groups of three, with the rollout's own predictions."""
    return sample(still_model, keep_predictions=True)


@pytest.fixture(scope="module")
def judged(rollout_of):
    rewards = [reward_class("colorfulness")(), reward_class("sharpness")(coefficient=0.5)]
    return score_stack(rewards, rollout_of.images, rollout_of.prompts, rollout_of.groups)


def cosine(a, b):
    a, b = (np.asarray(x, dtype=np.float64).reshape(len(x), -1) for x in (a, b))
    return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


def test_prediction_compares_what_is_foreseen_with_what_came(still_model, rollout_of):
    for trajectories in (rollout_of, replace(rollout_of, predictions=None)):
        found = similarity("prediction", trajectories, still_model)
        expected = [cosine(rollout_of.predictions[:, j], rollout_of.final) for j in range(4)]
        np.testing.assert_allclose(found[:, :4], np.stack(expected, 1), atol=1e-5)
        assert found.shape == (6, 5) and torch.equal(found[:, 3:], torch.ones(6, 2)), "the last x̂0 is the picture"
    assert found[0, 0] != found[1, 0], "one x̂0, but each sample's own picture"


def test_image_features_compare_what_an_encoder_sees(still_model, rollout_of):
    encoder = features.load("shapes-clip")
    assert features.load("shapes-clip") is encoder is reward_class("clip_t")().network, "shared with CLIP-T"
    found = similarity("image_features", rollout_of, still_model, encoder=encoder)
    pictures = [still_model.decode(rollout_of.predictions[:, j]) for j in range(3)]
    with torch.no_grad():
        seen = [encoder.pictures(images) for images in (*pictures, rollout_of.images)]
    expected = [cosine(own, seen[-1]) for own in seen[:3]]
    np.testing.assert_allclose(found[:, :3], np.stack(expected, 1), atol=1e-4)
    assert torch.equal(found[:, 3:], torch.ones(6, 2))


def test_measured_gain_is_the_rewards_in_units_of_their_spread(still_model, rollout_of, judged):
    found = similarity("measured_gain", rollout_of, still_model, judged)
    spread = judged.values.double().std(0).numpy()
    for j in range(5):
        images = rollout_of.images if j > 3 else still_model.decode(rollout_of.predictions[:, j])
        values = [reward.score(images, rollout_of.texts).double().numpy() for reward in judged.rewards]
        np.testing.assert_allclose(found[:, j], values[0] / spread[0] + 0.5 * values[1] / spread[1], rtol=1e-3)


def test_a_sample_that_could_not_be_scored_weighs_its_steps_alike(still_model, rollout_of, judged):
    gap = replace(judged, values=judged.values.clone())
    gap.values[2, 0] = torch.nan
    credit = from_similarity(similarity("measured_gain", rollout_of, still_model, gap), rollout_of.trained)
    torch.testing.assert_close(credit.weights[2], torch.ones(3))
    assert credit.weights.isfinite().all() and (credit.weights[:2] != 1).any()


def test_latents_is_plain_tcd_and_any_progress_becomes_weights(rollout_of):
    found = similarity("latents", rollout_of)
    assert torch.equal(found, similarity_gain(rollout_of.latents, rollout_of.final)[0])
    plain = tcd(rollout_of.latents, rollout_of.final, rollout_of.trained, 0.25, "waterfill")
    assert torch.equal(from_similarity(found, rollout_of.trained, 0.25, "waterfill").weights, plain.weights)
    # Gains 3, -1 and 1 over steps 0, 1, 2: ŵ = 3/4, 0, 1/4 and w = 0.4 + 0.6·3·ŵ.
    credit = from_similarity(torch.tensor([[0.0, 3.0, 2.0, 3.0]]), range(3), w_min=0.4)
    torch.testing.assert_close(credit.weights, torch.tensor([[1.75, 0.4, 0.85]]))
    with pytest.raises(ValueError, match="needs model and scores.* Fix: "):  # where the proxy was linked
        similarity("measured_gain", rollout_of)


# -- the node ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proxy", SPECIFIC)
def test_the_node_weighs_by_a_proxy(writes_to, proxy, small_graph, tmp_path):
    writes_to(tmp_path / "run")
    graph = small_graph({"OTCA_SDESampler": {"keep_graph": "on"}})
    graph["9"]["inputs"] |= {"proxy": proxy, "model": ["1", 0], "scores": ["8", 0]}
    workflow = Workflow(graph, NODE_CLASS_MAPPINGS)
    assert workflow.validate() == []
    outputs = workflow.run(targets=["10"])
    credit, forwards = outputs["9"][0], outputs["1"][0].forwards.take()["forwards/all"]
    # The rollout's own: two groups share the first point, and beside a kept graph are its predictions.
    assert forwards == 2 + 3 * 6
    assert credit.method == f"tcd, {proxy}" and credit.delta.shape == (6, 4)
    torch.testing.assert_close(credit.weights.mean(1), torch.ones(6))
    assert (credit.weights - 1).abs().max() > 0.05 and not torch.isnan(credit.weights).any()


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"proxy": "prediction"}, "'prediction' needs model, which is not connected. Fix: connect model, or"),
        ({"proxy": "measured_gain"}, "needs model and scores, which are not connected. Fix: connect model and scores"),
        ({"proxy": "measured_gain", "model": ["1", 0]}, "needs scores, which is not connected"),
        ({"proxy": "depth"}, "'depth' is unknown. Fix: one of latents, prediction, image_features, measured_gain"),
        ({"proxy": "prediction", "model": ["8", 0]}, "model receives OTCA_SCORES where OTCA_MODEL is needed"),
        (
            {"proxy": "image_features", "model": ["1", 0], "features": "no-such"},
            "features: model 'no-such' was not found",
        ),
        ({"trajectories": ["1", 0]}, "trajectories receives OTCA_MODEL where OTCA_TRAJECTORIES is needed"),
    ],
)
def test_what_is_missing_is_named_before_anything_runs(inputs, expected, small_graph):
    graph = small_graph()
    graph["9"]["inputs"] |= inputs
    [problem] = Workflow(graph, NODE_CLASS_MAPPINGS).validate()
    message = f"{problem.input}: {problem.message}. Fix: {problem.fix}".replace("..", ".")
    assert problem.node_id == "9" and expected in message
