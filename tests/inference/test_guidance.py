"""Implicit Reward Guidance: against velocities put together by hand, how often the network is asked, and what is left behind."""

from __future__ import annotations

import contextlib
import functools
import shutil
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comfyui_otca.inference import guidance
from comfyui_otca.inference.guidance import Composition, Guide, composed, parse, parse_lines
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.policy.files import find, read_tensors, write_tensors
from comfyui_otca.trainer.sde import transition

pytestmark = pytest.mark.anywhere

TEXTS, SEEDS = ["a red circle", "a blue square"], [3, 4]


@pytest.fixture(scope="module")
def files(load_model, perturb, tmp_path_factory):
    """{name: a LoRA that is seen}: of another rank than the model's own, one with fewer targets and one with an alpha."""
    folder = tmp_path_factory.mktemp("loras")
    made = {
        "one": load_model(lora_rank=3, lora_alpha=3.0),
        "two": load_model(lora_rank=5, lora_alpha=2.5, lora_targets="to_q,to_k"),
    }
    for seed, (name, model) in enumerate(made.items()):
        lora.save(perturb(model, seed, scale=0.3), folder / f"{name}.safetensors", {})
    return {name: folder / f"{name}.safetensors" for name in made}


@pytest.fixture
def pictures(small_settings, files):
    """pictures(model, "one=1.5", …): with these guides, and how often the model was asked."""

    def generate(model, *guides):
        calls = []
        own = [parse(text.replace(name, str(files[name]))) for text in guides for name in files if name in text]
        with composed(model, own, small_settings().steps) if own else contextlib.nullcontext() as compose:
            images = rollout.generate(model, TEXTS, small_settings(), SEEDS, lambda: calls.append(1), compose)
        return images, len(calls)

    return generate


# --- what is written ------------------------------------------------------------------------------------------------


def test_guides_are_read():
    assert parse("runs/color = 1.5") == Guide("runs/color", ((0, 1.5),))
    assert parse("a=b.safetensors=-.5") == Guide("a=b.safetensors", ((0, -0.5),)), "away from what was learned"
    steps = parse("color=0:1.5, 8:0.5")
    assert steps == Guide("color", ((0, 1.5), (8, 0.5)))
    assert [steps.at(step) for step in (0, 7, 8, 20)] == [1.5, 1.5, 0.5, 0.5]
    assert [parse("color=4:2").at(step) for step in (0, 3, 4)] == [0, 0, 2]
    assert parse_lines("color = 1\n\n# sharp = 2\n x/sharp.safetensors=0.5 ") == [
        parse("color=1"),
        parse("x/sharp.safetensors=.5"),
    ]
    assert [str(parse(text)) for text in ("runs/color=1.50", "x/sharp.safetensors=0:2,3:1")] == [
        "color 1.5",
        "sharp 0:2, 3:1",
    ]


UNREADABLE = {
    "runs/color": "'runs/color' is not RUN=γ",
    "=1": "'=1' is not RUN=γ",
    "color=much": "γ 'much' is not a number",
    "color=": "γ '' is not a number",
    "color=nan": "γ 'nan' is not a number",
    "color=0:inf": "γ 'inf' is not a number",
    "color=1.5,0.5": "'1.5' is not STEP:γ",
    "color=0:1,-1:2": "'-1:2' is not STEP:γ",
    "color=4:1,4:2": "its steps do not rise",
}


def test_what_cannot_be_read_is_named():
    for text, told in UNREADABLE.items():
        with pytest.raises(ValueError, match="guide .*Fix: ") as caught:
            parse(text)
        assert told in str(caught.value)
    with pytest.raises(ValueError, match="no guide is named. Fix: "):
        parse_lines("\n# color = 1\n")


# --- the formula ----------------------------------------------------------------------------------------------------


def composition(velocities, guides):
    """Of networks that answer with a constant each: {"base" or adapter: velocity}; and what was asked of whom."""
    state = types.SimpleNamespace(active="own", asked=[])
    use = functools.partial(setattr, state, "active")

    @contextlib.contextmanager
    def reference():
        before, state.active = state.active, "base"
        yield
        state.active = before

    def predict():
        state.asked.append(state.active)
        return velocities[state.active]

    model = types.SimpleNamespace(policy=types.SimpleNamespace(reference=reference, use_adapter=use))
    return Composition(model, guides), predict, state.asked


number = st.floats(-3, 3, width=16)


@given(st.lists(st.tuples(number, number), max_size=4), number)
def test_the_composed_velocity_is_the_formulas(pairs, base):
    velocities = {
        "base": torch.tensor(base, dtype=torch.float64),
        **{f"g{k}": torch.tensor(v, dtype=torch.float64) for k, (v, _) in enumerate(pairs)},
    }
    guides = [(f"g{k}", Guide("x", ((0, gamma),))) for k, (_, gamma) in enumerate(pairs)]
    compose, predict, asked = composition(velocities, guides)
    expected = base + sum(gamma * (v - base) for v, gamma in pairs)
    assert compose(0, predict).item() == pytest.approx(expected, abs=1e-12)
    assert len(asked) == len(set(asked)) == compose.calls(1)
    assert set(asked) - {"base"} == {f"g{k}" for k, (_, gamma) in enumerate(pairs) if gamma}


SHARES = [
    ([1.0], ["a"]),
    ([0.0], ["base"]),
    ([1.5], ["base", "a"]),
    ([0.1, 0.2, 0.7], ["a", "b", "c"]),
    ([1.0, 1.0], ["base", "a", "b"]),
    ([0.0, 1.0], ["b"]),
]


def test_only_those_with_a_share_are_asked():
    velocities = dict.fromkeys(["base", "a", "b", "c"], torch.zeros(1))
    for gammas, asked in SHARES:
        guides = [(name, Guide(name, ((0, gamma),))) for name, gamma in zip("abc", gammas, strict=False)]
        compose, predict, seen = composition(velocities, guides)
        compose(0, predict)
        assert seen == asked, gammas


@pytest.mark.parametrize("family", ["sd3", "wan22"])
def test_against_models_that_wear_one_adapter_each(family, perturb, small_settings, tmp_path, tiny_folder):
    """Guided twice over: with classifier-free guidance, which is inside each velocity; of Wan both networks."""
    folder = tiny_folder(family)
    size = {"width": 32, "height": 16, "frames": 5} if family == "wan22" else {}
    settings = small_settings(guidance=4.0, negative_prompt="noise", **size)
    load = lambda rank: load_flow_model(folder, lora_rank=rank, lora_alpha=float(rank), device="cpu")  # noqa: E731
    gammas = {"a": 1.5, "b": -0.5}
    for seed, name in enumerate(gammas):
        lora.save(perturb(load(seed + 2), seed, scale=0.3), tmp_path / f"{name}.safetensors", {})

    base, tuned = perturb(load(4), 9), {name: load(4) for name in gammas}
    for name, model in tuned.items():
        lora.put_on(model, tmp_path / f"{name}.safetensors")
    shape = base.latent_shape(settings.height, settings.width, settings.frames)
    x = torch.randn((2, *shape), generator=torch.Generator().manual_seed(1))

    def velocity(model, sigma):
        return model.velocity(x, sigma, model.condition(TEXTS, settings), model.guidance_at(sigma, settings))

    guides = [parse(f"{tmp_path / name}.safetensors={gamma}") for name, gamma in gammas.items()]
    with torch.no_grad(), composed(base, guides, 4) as compose:
        for sigma in (1.0, 0.4):  # above and below Wan's boundary
            got = compose(0, lambda sigma=sigma: velocity(base, sigma))
            with base.policy.reference():
                start = velocity(base, sigma)
            parts = {name: velocity(model, sigma) for name, model in tuned.items()}
            expected = start.double() + sum(gammas[name] * (own.double() - start) for name, own in parts.items())
            assert all((own - start).abs().max() > 1e-2 for own in parts.values())
            torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=1e-6)


# --- pictures -------------------------------------------------------------------------------------------------------


def test_one_guide_at_1_is_the_tuned_model_and_at_0_the_base(load_model, perturb, pictures, files):
    model, tuned = perturb(load_model()), load_model()
    lora.put_on(tuned, files["one"])
    expected, steps = pictures(tuned)
    guided, calls = pictures(model, "one=1")
    assert torch.equal(guided, expected) and calls == steps == 4, "and the base is not asked"
    with model.policy.reference():
        base, _ = pictures(model)
    guided, calls = pictures(model, "one=0")
    assert torch.equal(guided, base) and calls == 4 and not torch.equal(base, expected)
    assert pictures(model, "one=1.5", "two=0.5")[1] == 12


def test_a_step_is_linear_in_gamma(still_model, small_settings, files):
    x = torch.randn((2, *still_model.latent_shape(40, 40)), generator=torch.Generator().manual_seed(1))
    x, condition = x.to(still_model.device), still_model.embeddings(TEXTS)
    found = []
    for gamma in (0.0, 0.7, 1.4, 2.1):
        with torch.no_grad(), composed(still_model, [parse(f"{files['one']}={gamma}")], 1) as compose:
            found.append(compose(0, lambda: still_model.velocity(x, 0.8, condition, 3.5)))
    steps = [after - before for before, after in zip(found, found[1:], strict=False)]
    assert steps[0].abs().max() > 1e-2
    for step in steps[1:]:
        torch.testing.assert_close(step, steps[0], rtol=0, atol=5e-6)


def test_gamma_by_step(model, pictures, files, small_settings, load_model):
    """0 at the first step, 1.5 at the second, 1 from the third on."""
    settings, tuned = small_settings(), load_model()
    lora.put_on(tuned, files["one"])
    guided, calls = pictures(model, "one=1:1.5,2:1")
    assert calls == 1 + 2 + 1 + 1
    sigmas, x = model.sigmas(settings), torch.stack([*map(noise, SEEDS, TEXTS, [model] * len(SEEDS))])
    x = x.to(model.device)
    for step, gamma in enumerate((0, 1.5, 1, 1)):
        condition = model.condition(TEXTS, settings)
        with torch.no_grad():
            base = model.velocity(x, sigmas[step], condition, 3.5)
            away = tuned.velocity(x, sigmas[step], condition, 3.5) - base
        x = transition("ode", base + gamma * away, x, sigmas[step], sigmas[step + 1], eta=0.0).mean
    torch.testing.assert_close(guided, model.decode(x), rtol=0, atol=1e-4)
    assert (guided - pictures(model, "one=1")[0]).abs().max() > 1e-2


def noise(seed, text, model):
    return rollout.evaluated_noise(model.latent_shape(40, 40), seed, text)


# --- what is left behind --------------------------------------------------------------------------------------------


def state(model):
    own = {name: tensor.clone() for name, tensor in model.transformer.state_dict().items()}
    return (own, list(model.policy.trainable_named()), model.transformer.active_adapters(), model.policy.adapter)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("targets", ["", "attn.to_q"])
def test_the_model_is_as_it_was(load_model, perturb, pictures, files, targets, fails, small_settings):
    model = perturb(load_model(lora_targets=targets, lora_alpha=6.0))
    before, parameters = state(model), model.policy.trainable_parameters()
    expected, _ = pictures(model)
    if fails:
        guides, calls = [parse(f"{files['one']}=2"), parse(f"{files['two']}=1")], []

        def stop():
            calls.append(1)
            if len(calls) == 5:  # amid the second step, while a guide is on
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), composed(model, guides, 4) as compose:
            rollout.generate(model, TEXTS, small_settings(), SEEDS, stop, compose)
    else:
        assert not torch.equal(pictures(model, "one=2", "two=1")[0], expected)
    after = state(model)
    assert list(after[0]) == list(before[0]) and after[1:] == before[1:]
    assert all(torch.equal(before[0][name], tensor) for name, tensor in after[0].items())
    assert all(a is b for a, b in zip(model.policy.trainable_parameters(), parameters, strict=True)), (
        "the optimizer's own"
    )
    assert torch.equal(pictures(model)[0], expected)


def test_a_guide_that_fails_to_load_leaves_nothing(model, files, tmp_path):
    tensors = read_tensors(files["two"])
    tensors.popitem()
    write_tensors(tmp_path / "cut.safetensors", tensors)
    before = state(model)
    guides = [parse(f"{files['one']}=1"), parse(f"{tmp_path}/cut.safetensors=1")]
    with pytest.raises(ValueError, match="cut.safetensors is not whole.*Fix: "), composed(model, guides, 4):
        pass
    assert list(state(model)[0]) == list(before[0]) and state(model)[1:] == before[1:]


# --- where guides come from, and refusals ---------------------------------------------------------------------------


def test_a_run_by_its_folder_or_name_and_a_file_in_a_loras_folder(real_run, files, tmp_path, monkeypatch):
    assert find(str(real_run)) == real_run / "lora.safetensors"
    monkeypatch.chdir(tmp_path)
    shutil.copytree(real_run, tmp_path / "runs" / "mine")
    assert find("mine").resolve() == tmp_path / "runs" / "mine" / "lora.safetensors"
    (tmp_path / "loras").mkdir()
    for expert in ("high", "low"):
        shutil.copy(files["one"], tmp_path / "loras" / f"wan_{expert}_noise.safetensors")
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    assert find("wan.safetensors") == tmp_path / "loras" / "wan.safetensors"


def test_a_guide_that_was_trained_on_is_another(files, tmp_path):
    file = shutil.copy(files["one"], tmp_path / "a.safetensors")
    guides = [parse(f"{file}=1")]
    first = guidance.file_states(guides)
    assert first == guidance.file_states(guides) and len(first) == 1
    shutil.copy(files["two"], file)
    assert guidance.file_states(guides) != first


def test_refusals(model, files, tmp_path, flux_folder, load_model):
    def refused(text, told, error=ValueError, of=model):
        with pytest.raises(error, match="Fix: ") as caught, composed(of, [parse(text)], 4):
            pass
        assert told in str(caught.value)

    refused("nowhere=1", "adapter 'nowhere' was not found", FileNotFoundError)
    (tmp_path / "empty").mkdir()
    refused(f"{tmp_path}/empty=1", "has no lora.safetensors yet", FileNotFoundError)
    (tmp_path / "whole" / "transformer").mkdir(parents=True)
    (tmp_path / "whole" / "transformer" / "diffusion_pytorch_model.safetensors").touch()
    refused(f"{tmp_path}/whole=1", "whole trained all weights: it has no adapter")
    refused(f"{files['one']}=0:1,4:2", "step 4 does not exist, they are 0 … 3")
    refused(f"{files['one']}=1", "all weights of this run were trained", of=load_model(training="full"))
    pair = {f"transformer.x.lora_{side}.weight": torch.zeros(2, 2) for side in "AB"}
    write_tensors(tmp_path / "sd3.safetensors", pair)
    refused(f"{tmp_path}/sd3.safetensors=1", "is not an adapter of this model")
    # Of another model of the same shape.
    elsewhere = load_model(flux_folder.with_name("scenes-flux"))
    refused(f"{files['one']}=1", f"was trained on another base model than {elsewhere.source}", of=elsewhere)
