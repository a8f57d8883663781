"""`otca analyze` on the embedded model: a credit that is the reward's own gain agrees with it, others are measured."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from comfyui_otca.__main__ import main
from comfyui_otca.host import distributed, stopping
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from comfyui_otca.study import analyze as module
from comfyui_otca.study.analyze import ALIKE, analyze, markdown, pooled_pearson
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.types import Fused
from comfyui_otca.trainer.workflow.running import Workflow, WorkflowError

FILES = {"table.md", "analysis.json", "scatter.png", "curves.png", "profile.png"}


def with_proxy(graph, proxy):
    graph["9"]["inputs"] |= {"proxy": proxy, "model": ["1", 0], "scores": ["8", 0]}
    return graph


@pytest.fixture(scope="module")
def found(small_graph, tmp_path_factory):
    """The folder of two rollouts of a graph whose credit is the measured gain, and what was printed."""
    folder = tmp_path_factory.mktemp("analysis")
    graph = with_proxy(small_graph({"OTCA_SDESampler": {"group_size": 4, "steps": 6}}), "measured_gain")
    (folder / "workflow.json").write_text(json.dumps(graph))
    assert main(["analyze", str(folder / "workflow.json"), "--iterations", "1", "--output", str(folder / "a")]) == 0
    return folder / "a"


def rows(folder):
    content = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    return content, {(row["objective"], row["proxy"]): row for row in content["agreement"]}


def test_the_gain_itself_agrees_with_itself(found):
    content, table = rows(found)
    own = table["sum", "TCD Weights"]
    for name, perfect in {"Pearson": 1, "Spearman": 1, "order": 1, "recall@3": 1, "peak distance": 0}.items():
        figures = {key: own[name][key] for key in ("mean", "std", "low", "high")}
        assert figures == pytest.approx({"mean": perfect, "std": 0, "low": perfect, "high": perfect}, abs=1e-4), name
    assert own["pooled_pearson"] == pytest.approx(1.0, abs=1e-5) and own["Pearson"]["count"] == 8
    assert own["recall@5"]["mean"] is None, "five of five steps are no choice"
    other = table["sum", "latents"]
    assert other["Pearson"]["mean"] < 0.9 and other["Pearson"]["std"] > 0.05
    assert (content["groups"], content["trajectories"], content["trained"]) == (2, 8, [0, 1, 2, 3, 4])


def test_every_objective_meets_every_proxy(found):
    content, table = rows(found)
    objectives = ["clip_t", "colorfulness", "sharpness", "accuracy", "sum"]
    proxies = ["latents", "prediction", "TCD Weights", ALIKE]
    assert list(table) == [(objective, proxy) for objective in objectives for proxy in proxies]
    assert {path.name for path in found.iterdir()} == FILES
    printed = (found / "table.md").read_text(encoding="utf-8")
    assert printed.count("\n| ") == len(table) + 1 + 9, "rows, chance, and the second table with its head"
    assert "MOCA Fuse: tanh(e) " in printed and set(content["behaviour"]["MOCA Fuse"]) == set(module.BEHAVIOUR)
    assert content["chance"]["order"] == 0.5 and content["mean_delta_reward"].keys() == set(objectives)


def test_every_step_has_its_share(found):
    content, _ = rows(found)
    assert [own["objective"] for own in content["shares"]] == ["clip_t", "colorfulness", "sharpness", "accuracy"]
    table = (found / "table.md").read_text(encoding="utf-8")
    for own in content["shares"][:3]:
        assert len(own["variance"]) == 6 and own["variance"][5] == 0, "the last step leads to the predicted picture"
        assert sum(own["covariance"]) == pytest.approx(1)
        assert f"| {sum(own['variance']):.2f} ({own['low']:.2f} … {own['high']:.2f}) |" in table


def test_gains_and_proxies_are_those_of_the_rollout(small_graph, tmp_path, monkeypatch):
    """The numbers behind the table, from the trajectories themselves."""
    kept = []
    whole = module.put_together
    monkeypatch.setattr(module, "put_together", lambda *args: kept.append(args) or whole(*args))
    shown = []
    monkeypatch.setattr(module, "markdown", lambda analysis: shown.append(analysis) or markdown(analysis))
    workflow = Workflow(small_graph(), NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS)
    analyze(workflow, tmp_path / "a", 2)
    (rollouts, scores, trajectories), [analysis] = kept[0], shown
    assert len(rollouts) == 2 and analysis.groups == 4
    assert not np.array_equal(rollouts[0].rewards, rollouts[1].rewards), "seeds and prompts advance"
    credit = tcd(trajectories.latents, trajectories.final, trajectories.trained)
    np.testing.assert_allclose(analysis.deltas["latents"][6:], credit.delta[:, :3], atol=1e-6)
    assert list(analysis.deltas) == ["latents", "prediction", ALIKE], "TCD's own ΔS is that of the latents"
    np.testing.assert_allclose(analysis.deltas[ALIKE][4], analysis.deltas["latents"].mean(0), atol=1e-6)
    rewards = np.concatenate([own.rewards for own in rollouts]).astype(float)
    np.testing.assert_allclose(rewards[6:, -1, :3], scores.values, atol=1e-6)
    spread = rewards[:, -1].std(0, ddof=1)
    for k, name in enumerate(("clip_t", "colorfulness", "sharpness")):
        expected = np.diff(rewards[:, :, k], axis=1)[:, :3] / spread[k]
        np.testing.assert_allclose(analysis.gains[name], expected, rtol=1e-3, atol=1e-4)
    total = sum(analysis.gains[name] for name in ("clip_t", "colorfulness", "sharpness"))
    np.testing.assert_allclose(analysis.gains["sum"], total, rtol=1e-3, atol=1e-3)
    [row] = [row for row in analysis.rows if (row.objective, row.proxy) == ("sharpness", "latents")]
    a, b = analysis.deltas["latents"], analysis.gains["sharpness"]
    each = [np.corrcoef(x, y)[0, 1] for x, y in zip(a, b, strict=True)]
    own, std = row.measures["Pearson"]
    assert (own.mean, std) == pytest.approx((np.mean(each), np.std(each, ddof=1)), abs=1e-5)
    assert own.low <= own.mean <= own.high and own.count == 12
    assert row.pooled == pytest.approx(np.corrcoef(a.ravel(), b.ravel())[0, 1], abs=1e-5)


def test_whom_the_fused_advantage_follows():
    objectives = torch.tensor([[1.0, 1.0], [2.0, -1.0], [0.0, 3.0], [-1.0, 0.0], [9.0, 9.0]])
    own = SimpleNamespace(
        fused=Fused(torch.tensor([2.0, 1.0, 3.0, -1.0, -50.0]), objectives),  # the sum, where the sample counts
        valid=torch.tensor([True, True, True, True, False]),
        per_objective=objectives,
        metrics={"z/group_mean": 0.25, "loss": 1.0},
    )
    figures = module.behaviour_of(own)
    assert figures.keys() == {"z/group_mean", "z/with_sum", "z/with_least"} and figures["z/group_mean"] == 0.25
    nobody = SimpleNamespace(**{**vars(own), "valid": torch.zeros(5, dtype=torch.bool)})
    assert np.isnan(module.behaviour_of(nobody)["z/with_sum"])
    # z - 1.25 = 0.75, -0.25, 1.75, -2.25 and min A + 0.25 = 1.25, -0.75, 0.25, -0.75
    assert figures["z/with_sum"] == pytest.approx(1.0)
    assert figures["z/with_least"] == pytest.approx(3.25 / (8.75 * 2.75) ** 0.5)


def test_trajectories_with_a_gap_are_left_out_of_the_cloud():
    delta, gain = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [np.nan, -9.0]])
    assert pooled_pearson(delta, gain) == pytest.approx(1.0)
    assert np.isnan(pooled_pearson(delta[1:], gain[1:]))
    assert pooled_pearson(gain, delta) == pytest.approx(1.0)


def test_the_price_of_looking_ahead_and_the_adapter_are_choices(small_graph, load_toy, perturb, tmp_path):
    trained = perturb(load_toy(), scale=0.3)
    lora.save(trained, tmp_path / "lora.safetensors", {})
    fresh = load_toy()
    module.wear(fresh, tmp_path)  # a run's folder
    for name, tensor in trained.policy.trained_state().items():
        torch.testing.assert_close(fresh.policy.trained_state()[name], tensor)
    (tmp_path / "workflow.json").write_text(json.dumps(small_graph(source="stepwise_flow_grpo.json")))
    arguments = [
        "analyze",
        str(tmp_path / "workflow.json"),
        "--iterations",
        "1",
        "--seed",
        "5",
        "--tweedie-steps",
        "2",
        "--adapter",
        str(tmp_path / "lora.safetensors"),
        "--output",
        str(tmp_path / "a"),
    ]
    assert main(arguments) == 0
    content, _ = rows(tmp_path / "a")
    assert content["tweedie_steps"] == 2 and content["trained"] == [1, 2]
    assert content["adapter"] == str(tmp_path / "lora.safetensors")
    assert (
        "(of one rollout)" in (tmp_path / "a" / "table.md").read_text()
        and "nan" not in (tmp_path / "a" / "table.md").read_text()
    )
    assert content["behaviour"]["Stepwise Gain"].keys() == module.BEHAVIOUR.keys() - {"moca/tanh_e"}


def test_refusals(small_graph, tmp_path, monkeypatch, capsys):
    def prepared(graph):
        return Workflow(graph, NODE_CLASS_MAPPINGS)

    broken = small_graph()
    broken["9"]["inputs"]["w_min"] = 2.0
    with pytest.raises(WorkflowError, match="w_min"):
        analyze(prepared(broken), tmp_path / "a", 1)
    full = small_graph({"OTCA_LoadFlowModel": {"training": "full"}})
    with pytest.raises(ValueError, match="--adapter .* needs a model with an adapter.* Fix: set training to lora"):
        analyze(prepared(full), tmp_path / "a", 1, tmp_path / "lora.safetensors")
    monkeypatch.setattr(distributed, "world", lambda: 2)
    with pytest.raises(ValueError, match="one process. Fix: "):
        analyze(prepared(small_graph()), tmp_path / "a", 1)
    assert not (tmp_path / "a").exists()


def test_a_stop_leaves_nothing_behind(small_graph, tmp_path, monkeypatch, capsys):
    (tmp_path / "workflow.json").write_text(json.dumps(small_graph()))

    def stop(total):
        stopping.request.signal = 2
        raise stopping.Stopped("signal 2")

    monkeypatch.setattr(stopping, "progress", stop)
    code = main(["analyze", str(tmp_path / "workflow.json"), "--output", str(tmp_path / "a")])
    assert code == 130 and "nothing was written" in capsys.readouterr().err and not (tmp_path / "a").exists()


def test_table_and_pictures_without_figures(tmp_path):
    """A single group of samples that nobody could score."""
    from comfyui_otca.study.analyze import Analysis, row_of

    gains = {"a": np.full((2, 3), np.nan)}
    deltas = {"latents": np.arange(6.0).reshape(2, 3)}
    row = row_of("a", "latents", deltas["latents"], gains["a"], 2)
    analysis = Analysis([row], gains, deltas, {}, 1, (0, 1, 2), (1.0, 0.7, 0.4, 0.0), [])
    text = markdown(analysis)
    assert "| a | latents | – | – | – | – | – | – | – |" in text and "sum:" not in text
    figures = {"z/group_mean": (0.25, 0.5), "z/with_sum": (0.75, np.nan), "z/with_least": (np.nan, np.nan)}
    text = markdown(replace(analysis, behaviour={"Fuse": figures}))
    assert "\nFuse: group mean of z 0.25 ± 0.5, r of z with Σ A 0.75 (mean ± std over rollouts).\n" in text
    module.draw(analysis, tmp_path)
    assert not list(tmp_path.iterdir()), "nothing to draw"
    one = {"b": np.array([[1.0, 0.0, 2.0], [np.nan, 1.0, 1.0]])}
    both = replace(analysis, gains=gains | one, rows=[replace(row, objective="b", pooled=0.5)])
    module.draw(both, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES - {"table.md", "analysis.json"}
