"""Small graphs of tiny node classes; what is asserted is which nodes ran, on what, and what a refusal says."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from comfyui_otca.trainer.workflow.running import NodeError, Problem, Workflow, WorkflowError


class Big:
    """A weakly referable stand-in for trajectories."""


@pytest.fixture
def log():
    """What ran, with its arguments."""
    return []


@pytest.fixture
def classes(log):
    """Fresh node classes."""

    class Base:
        FUNCTION = "go"
        RETURN_TYPES = ("NUMBER",)

    class Number(Base):
        @classmethod
        def INPUT_TYPES(cls):
            seed = ("INT", {"default": 0, "min": 0, "max": 100, "control_after_generate": True})
            return {"required": {"value": seed}, "optional": {"scale": ("FLOAT", {})}}

        def go(self, value, scale=1.0):
            log.append("Number")
            return (value * scale,)

    class Add(Base):
        @classmethod
        def INPUT_TYPES(cls):
            return {"required": {"a": ("NUMBER",), "b": ("NUMBER",)}, "hidden": {"me": "UNIQUE_ID"}}

        def go(self, a, b, me):
            log.append(f"Add {me}")
            return (a + b,)

    class Show(Base):
        OUTPUT_NODE = True
        RETURN_TYPES = ()

        @classmethod
        def INPUT_TYPES(cls):
            hidden = {"me": "UNIQUE_ID", "prompt": "PROMPT", "png": "EXTRA_PNGINFO"}
            return {"required": {"a": ("NUMBER",)}, "hidden": hidden}

        def go(self, a, me, prompt, png):
            log.append(f"Show {a} {me} {png} {prompt.get('1', prompt[me])['inputs']}")
            return {"ui": {"text": [str(a)]}}

    class Options(Base):
        OUTPUT_NODE = True
        RETURN_TYPES = ("STRING", ["red", "green"])

        @classmethod
        def INPUT_TYPES(cls):
            return {
                "required": {
                    "color": (["red", "green"],),
                    "mode": ("COMBO", {"options": [1, 2]}),
                    "name": ("STRING", {}),
                    "on": ("BOOLEAN", {"default": True}),
                    "rate": ("FLOAT", {"min": 0.0}),
                },
                "optional": {"any": ("*",), "either": ("NUMBER,LATENT",)},
            }

        def go(self, **inputs):
            log.append(inputs)
            return ("text", "red")

    return {"OTCA_Number": Number, "OTCA_Add": Add, "OTCA_Show": Show, "OTCA_Options": Options}


def node(class_type, title=None, **inputs):
    return {"class_type": class_type, "inputs": inputs, **({"_meta": {"title": title}} if title else {})}


def chain():
    """1 and 2 are added by 3, which 4 shows."""
    return {
        "1": node("OTCA_Number", "First", value=1),
        "2": node("OTCA_Number", "Second", value=2),
        "3": node("OTCA_Add", "Sum", a=["1", 0], b=["2", 0]),
        "4": node("OTCA_Show", a=["3", 0]),
    }


def options(**changed):
    return node("OTCA_Options", "Options", **{**dict(color="red", mode=1, name="x", on=True, rate=0.5), **changed})


def ran(workflow, **arguments):
    """The ids that one run executes, sorted, and its outputs."""
    seen = []
    outputs = workflow.run(on_node=lambda node_id, cached: None if cached else seen.append(node_id), **arguments)
    return sorted(seen), outputs


def only(problems):
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


# --- running and caching ----------------------------------------------------------------------------------------


def test_runs_ancestors_of_outputs_once_and_then_nothing(classes, log):
    workflow = Workflow({**chain(), "9": node("OTCA_Number", value=7)}, classes)
    seen, outputs = ran(workflow)
    assert seen == ["1", "2", "3", "4"]  # 9 feeds no output
    assert outputs == {"1": (1.0,), "2": (2.0,), "3": (3.0,), "4": ()}
    assert log[2:] == ["Add 3", "Show 3.0 4 None {'value': 1}"]
    assert workflow.ui == {"4": {"text": ["3.0"]}}
    assert ran(workflow) == ([], outputs) and len(log) == 4


def test_on_node_tells_what_is_cached_before_the_node_runs(classes, log):
    workflow, seen = Workflow(chain(), classes), []
    for overrides in ({}, {("2", "value"): 5}):
        workflow.run(overrides, on_node=lambda node_id, cached: seen.append((node_id, cached, len(log))))
    assert [entry[1:] for entry in seen[:4]] == [(False, 0), (False, 1), (False, 2), (False, 3)]
    assert {node_id: cached for node_id, cached, _ in seen[4:]} == {"1": True, "2": False, "3": False, "4": False}


def test_what_is_given_takes_the_place_of_a_node_and_of_all_above_it(classes):
    workflow = Workflow(chain(), classes)
    seen, outputs = ran(workflow, results={"3": (7.0,)})
    assert (seen, outputs) == (["4"], {"3": (7.0,), "4": ()})
    assert workflow.ui == {"4": {"text": ["7.0"]}}


def test_set_and_overrides_rerun_descendants_only_and_overrides_last_one_run(classes, log):
    workflow = Workflow(chain(), classes)
    ran(workflow)
    workflow.set("2.value", 5)
    assert ran(workflow)[0] == ["2", "3", "4"]
    seen, outputs = ran(workflow, overrides={("1", "value"): 10})
    assert (seen, outputs["3"]) == (["1", "3", "4"], (15.0,))
    assert "{'value': 10}" in log[-1]  # PROMPT is the graph as it ran
    assert workflow.graph["1"]["inputs"] == {"value": 1}
    seen, outputs = ran(workflow)
    assert (seen, outputs["3"]) == (["1", "3", "4"], (6.0,))
    workflow.set("1.value", "1")  # equal values, written differently
    assert ran(workflow)[0] == [] == ran(workflow, overrides={("2", "value"): 5.0})[0]


def test_override_of_a_link_leaves_its_source_out(classes, log):
    workflow = Workflow({"1": node("OTCA_Number", value=3), "2": options(any=["1", 0])}, classes)
    assert ran(workflow)[0] == ["1", "2"]
    seen, outputs = ran(workflow, overrides={("2", "any"): [1, 2]})
    assert seen == ["2"] and "1" not in outputs and log[-1]["any"] == [1, 2]


def test_targets_limit_the_run_and_other_results_that_hold_are_kept(classes):
    workflow = Workflow({**chain(), "5": node("OTCA_Show", a=["1", 0])}, classes)
    assert ran(workflow, targets=["3"])[0] == ["1", "2", "3"]
    assert ran(workflow, targets=["5"])[0] == ["5"]
    assert ran(workflow)[0] == ["4"]
    assert ran(workflow, targets=["5"], overrides={("1", "value"): 8})[0] == ["1", "5"]
    assert ran(workflow, targets=["2"])[0] == []
    with pytest.raises(WorkflowError, match="'33'.*Fix: did you mean 3"):
        workflow.run(targets=["33"])


def test_results_that_no_longer_hold_are_freed_before_anything_runs_even_when_not_needed(classes):
    alive, at_start = weakref.WeakSet(), []

    def big(self, **inputs):
        gc.collect()
        at_start.append(len(alive))
        alive.add(made := Big())
        return (made,)

    classes["OTCA_Number"].go = classes["OTCA_Show"].go = big
    graph = {"1": node("OTCA_Number", value=1), "2": node("OTCA_Show", a=["1", 0]), "8": node("OTCA_Number", value=1)}
    workflow = Workflow(graph, classes)
    workflow.run()
    workflow.run({("1", "value"): 2})
    assert at_start == [0, 1, 0, 1]  # neither the old result of 1 nor that of 2, which comes later, was alive
    workflow.run({("1", "value"): 9}, targets=["8"])
    assert at_start[4:] == [0]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["x", "x", "y"], [["1", "2"], [], ["1", "2"]]),
        ([float("nan")] * 3, [["1", "2"]] * 3),  # one object: `is` must not make it equal
        ([["a"], ["a"], ["b"]], [["1", "2"], [], ["1", "2"]]),
        ([RuntimeError("no"), RuntimeError("no")], [["1", "2"], ["1", "2"]]),
    ],
)
def test_is_changed(classes, answers, expected):
    calls, links, pending = [], [], list(answers)

    def changed(value):
        calls.append(value)
        answer = pending.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    classes["OTCA_Number"].IS_CHANGED = staticmethod(changed)
    classes["OTCA_Show"].IS_CHANGED = staticmethod(lambda **inputs: links.append(inputs["a"]))
    workflow = Workflow({"1": node("OTCA_Number", value=4), "2": node("OTCA_Show", a=["1", 0])}, classes)
    assert [ran(workflow)[0] for _ in answers] == expected
    assert calls == [4] * len(answers) and set(links) == {None}, "None for a link, as in ComfyUI"


def test_failing_node_is_named_and_what_finished_stays_cached(classes):
    fail = [ValueError("boom")]

    def go(self, a, b, me):
        if fail:
            raise fail[0]
        return (a + b,)

    classes["OTCA_Add"].go = go
    workflow = Workflow(chain(), classes)
    with pytest.raises(NodeError, match=r'node 3 "Sum" \(OTCA_Add\) failed: ValueError: boom') as caught:
        workflow.run()
    assert caught.value.__cause__ is fail[0]
    fail[0] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        workflow.run()
    fail.clear()
    assert ran(workflow)[0] == ["3", "4"]
    fail.append(ValueError())
    with pytest.raises(NodeError):
        workflow.run({("1", "value"): 13})
    assert workflow.ui == {}, "nothing to show of before the change"
    fail.clear()
    assert ran(workflow)[0] == ["1", "3", "4"]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [((1, 2), (1, 2)), ({"result": (3,), "ui": {}}, (3,)), ({"ui": {}}, ()), (None, ()), ([4], (4,))],
)
def test_return_forms(classes, returned, expected):
    classes["OTCA_Number"].go = lambda self, value: returned
    assert Workflow({"1": node("OTCA_Number", value=1)}, classes).run(targets=["1"]) == {"1": expected}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (3, "node 3.*must return a tuple of outputs, not int"),
        (None, "node 4.*input a: node 3 returned 0 outputs, not 1"),
    ],
)
def test_a_result_that_is_no_tuple_or_too_short_is_an_error(classes, returned, message):
    classes["OTCA_Add"].go = lambda self, a, b, me: returned
    with pytest.raises(NodeError, match=message):
        Workflow(chain(), classes).run()


def test_one_instance_per_node_is_kept_and_the_prompt_that_it_gets_is_its_own(classes):
    instances = []
    classes["OTCA_Show"].go = lambda self, a, me, prompt, png: prompt["1"]["inputs"].clear()
    classes["OTCA_Number"].go = lambda self, value: instances.append(self) or (value,)
    workflow = Workflow(chain(), classes)
    workflow.run()
    workflow.run({("1", "value"): 5, ("2", "value"): 6})
    assert workflow.graph == chain()
    assert instances[0] is instances[2] and instances[1] is instances[3] and instances[0] is not instances[1]


def test_graphs_deeper_than_the_stack_and_wide_as_diamonds(classes):
    # written out, the signature of a chain of diamonds would double at each of the 3000 links
    graph = {
        "0": node("OTCA_Number", value=1, scale=0.0),
        **{str(i): node("OTCA_Add", a=[str(i - 1), 0], b=[str(i - 1), 0]) for i in range(1, 3000)},
    }
    workflow = Workflow(graph, classes)
    assert [len(ran(workflow, targets=["2999"])[0]) for _ in range(2)] == [3000, 0]


def test_full_validation_happens_once_per_changed_graph(classes):
    calls = []

    classes["OTCA_Number"].VALIDATE_INPUTS = staticmethod(lambda value: calls.append(value) or True)
    workflow = Workflow(chain(), classes)
    workflow.run()
    assert calls == [1, 2]
    workflow.run()
    workflow.run({("1", "value"): 3})
    assert calls[2:] == [3]
    workflow.set("2.value", 9)
    workflow.run()
    assert calls[3:] == [1, 9]


def test_run_refuses_invalid_inputs_before_anything_runs(classes, log):
    workflow = Workflow(chain(), classes)
    with pytest.raises(WorkflowError, match='node 1 "First", input value = 101: must be at most 100') as caught:
        workflow.run({("1", "value"): 101})
    assert log == [] and only(caught.value.problems).value == 101
    workflow.set("2.value", -1)
    with pytest.raises(WorkflowError, match='node 2 "Second", input value = -1: must be at least 0'):
        workflow.run()
    assert ran(workflow, overrides={("2", "value"): 3})[1]["3"] == (4.0,)  # the override repairs it …
    with pytest.raises(WorkflowError):  # … for one run
        workflow.run()
    for override, message in {
        ("7", "value"): "override of unknown node '7'",
        ("1", "valeu"): "no such input. Fix: did you mean value",
    }.items():
        with pytest.raises(WorkflowError, match=message):
            workflow.run({override: 1})


# --- random graphs ----------------------------------------------------------------------------------------------


@st.composite
def dags(draw):
    """(number of nodes, set of edges (lower, higher) under a random naming)"""
    count = draw(st.integers(1, 8))
    pairs = [(i, j) for j in range(count) for i in range(j)]
    edges = set(draw(st.lists(st.sampled_from(pairs), unique=True))) if pairs else set()
    names = draw(st.permutations([f"{i}:{i}" for i in range(count)]))
    order = draw(st.permutations(range(count)))  # the order in which the file lists them
    return count, edges, names, order


class AnyInputs(dict):
    """An optional table that answers for every name, as packs write it."""

    def __contains__(self, name):
        return True

    def __getitem__(self, name):
        return ("INT", {}) if name == "value" else ("NUMBER", {})


class Free:
    FUNCTION, RETURN_TYPES, OUTPUT_NODE = "go", ("NUMBER",), True

    @classmethod
    def INPUT_TYPES(cls):
        return {"optional": AnyInputs()}

    def go(self, value, **inputs):
        return ((value, sorted(inputs.items())),)


@settings(max_examples=60, deadline=None)
@given(dags(), st.data())
def test_random_dag(dag, data):
    count, edges, names, order = dag
    graph = {
        names[j]: node("Free", value=j, **{f"from_{i}": [names[i], 0] for i, k in sorted(edges) if k == j})
        for j in order
    }
    workflow, seen = Workflow(graph, {"Free": Free}), []
    outputs = workflow.run(on_node=lambda node_id, cached: cached or seen.append(node_id))
    position = {node_id: index for index, node_id in enumerate(seen)}
    assert sorted(seen) == sorted(names)
    assert all(position[names[i]] < position[names[j]] for i, j in edges)
    for j in range(count):
        assert outputs[names[j]] == ((j, sorted((f"from_{i}", outputs[names[i]][0]) for i, k in edges if k == j)),)
    assert ran(workflow)[0] == []

    reach = {(i, i) for i in range(count)} | edges  # closure by brute force
    for middle in range(count):
        reach |= {(i, j) for i in range(count) for j in range(count) if {(i, middle), (middle, j)} <= reach}
    changed = data.draw(st.integers(0, count - 1))
    workflow.set(f"{names[changed]}.value", 100)
    assert ran(workflow)[0] == sorted(names[j] for j in range(count) if (changed, j) in reach)
    target = data.draw(st.integers(0, count - 1))
    assert workflow.run(targets=[names[target]]).keys() == {names[i] for i in range(count) if (i, target) in reach}


# --- validation -------------------------------------------------------------------------------------------------


def test_problem_reads_as_one_line():
    problem = Problem("7", "SDE Sampler", "group_size", 1, "must be at least 2", "give\n4")
    assert str(problem) == 'node 7 "SDE Sampler", input group_size = 1: must be at least 2. Fix: give 4'


def test_everything_wrong_is_reported_at_once(classes):
    graph = {
        "1": node("OTCA_Number", "First", value=101),
        "2": node("OTCA_Number", "Second"),
        "3": node("OTCA_Add", "Sum", a=["1", 1], b=["2", 0]),
        "4": node("OTCA_Show", "Show", a=["3", 0]),
        "5": node("OTCA_Show", "Other", a=["77", 0]),
        "6": node("OTCA_Nubmer", value=1),
    }
    workflow = Workflow(graph, classes)
    found = {(problem.node_id, problem.input): str(problem) for problem in workflow.validate()}
    assert set(found) == {("1", "value"), ("2", "value"), ("3", "a"), ("5", "a"), ("6", None)}
    assert found["1", "value"] == (
        'node 1 "First", input value = 101: must be at most 100. Fix: give a whole number from 0 to 100 (default 0)'
    )
    assert found["2", "value"].startswith(
        'node 2 "Second", input value: required input is missing. Fix: give a whole number'
    )
    assert 'node 1 "First" has 1 outputs' in found["3", "a"] and "no output 1" in found["3", "a"]
    assert "the graph has no node 77. Fix: connect a NUMBER" in found["5", "a"]
    assert "unknown node class OTCA_Nubmer. Fix: did you mean OTCA_Number?" in found["6", None]
    with pytest.raises(WorkflowError) as caught:
        workflow.run()
    assert str(caught.value).splitlines() == list(map(str, caught.value.problems)) and len(caught.value.problems) == 5


@pytest.mark.parametrize(
    ("changed", "message", "fix"),
    [
        ({"color": "gren"}, "not one of the choices", "did you mean green? use one of: red, green"),
        ({"mode": 3}, "not one of the choices", "use one of: 1, 2"),
        ({"rate": -0.5}, "must be at least 0.0", "give a number from 0.0"),
        ({"rate": float("nan")}, "must be at least 0.0", "give a number from 0.0"),
        ({"rate": "fast"}, "not a value of type FLOAT", "give a number from 0.0"),
        ({"rate": True}, "not a value of type FLOAT", "give a number from 0.0"),
        ({"rate": {"__value__": [1]}}, "not a value of type FLOAT", "give a number from 0.0"),
        ({"rate": [1, 2, 3]}, "neither a link nor a value", "give a number from 0.0"),
        ({"on": "false"}, "not a value of type BOOLEAN", "give true or false (default True)"),
        ({"name": {"a": 1}}, "not a value of type STRING", "give a text"),
        ({"either": 3}, "takes a link of type NUMBER,LATENT, not a constant", "connect a NUMBER,LATENT"),
    ],
)
def test_wrong_constants(classes, changed, message, fix):
    problem = only(Workflow({"1": options(**changed)}, classes).validate())
    (name,) = changed
    assert (problem.node_id, problem.title, problem.input, problem.severity) == ("1", "Options", name, "error")
    assert message in problem.message and problem.fix == fix
    assert problem.value == changed[name] or problem.value != problem.value


def test_constants_arrive_converted(classes, log):
    for value in (3, "3", 3.0):
        assert Workflow({"1": node("OTCA_Number", value=value)}, classes).run(targets=["1"]) == {"1": (3.0,)}
    for value in (2.7, True, "x"):
        with pytest.raises(WorkflowError, match=f"input value = {value!r}: not a value of type INT"):
            Workflow({"1": node("OTCA_Number", value=value)}, classes).run(targets=["1"])
    log.clear()
    Workflow({"1": options(rate=1, name=5, on=0, any={"__value__": ["a", 1]})}, classes).run()
    assert log == [{"color": "red", "mode": 1, "name": "5", "on": False, "rate": 1.0, "any": ["a", 1]}]
    assert isinstance(log[0]["rate"], float) and log[0]["on"] is False


def test_a_node_that_was_exported_without_its_pack_is_named_with_that(classes):
    with pytest.raises(WorkflowError, match="entry '12:5' is not a node.*install the pack of that node"):
        Workflow({"12:5": {"inputs": {"UNKNOWN": 3}, "_meta": {"title": ""}}}, classes)


def test_what_the_page_has_a_widget_for_can_be_typed_in(classes, log):
    """ComfyUI 0.33 has colours, curves, boxes …, and choices that bring inputs of their own."""
    kinds = {
        "paint": ("COLOR", {"default": "#ffffff"}),
        "resize": ("COMFY_DYNAMICCOMBO_V3", {"options": [{"key": "by"}]}),
    }
    declared = classes["OTCA_Options"].INPUT_TYPES()
    declared["optional"] |= kinds
    classes["OTCA_Options"].INPUT_TYPES = classmethod(lambda cls: declared)
    Workflow({"1": options(paint="#000000", resize="by")}, classes).run()
    assert (log[0]["paint"], log[0]["resize"]) == ("#000000", "by")
    problem = only(Workflow({"1": options(resize="to")}, classes).validate())
    assert (problem.message, problem.fix) == ("not one of the choices", "use one of: by")


@pytest.mark.parametrize(
    ("link", "name", "ok"),
    [
        (["2", 0], "name", True),  # STRING to STRING
        (["2", 0], "color", True),  # STRING to a combo
        (["2", 1], "mode", True),  # combo to COMBO
        (["2", 1], "name", False),  # combo to STRING
        (["3", 0], "color", False),  # NUMBER to a combo
        (["3", 0], "either", True),  # one of a union
        (["2", 0], "either", False),
        (["3", 0], "any", True),
        (["4", 0], "rate", True),  # an output of type *
        (["3", 0], "rate", False),
    ],
)
def test_link_types(classes, link, name, ok):
    anything = type("Anything", (classes["OTCA_Number"],), {"RETURN_TYPES": ("*",)})
    graph = {
        "1": options(**{name: link}),
        "2": options(),
        "3": node("OTCA_Number", "Source", value=1),
        "4": node("X", value=1),
    }
    problems = Workflow(graph, {**classes, "X": anything}).validate()
    if ok:
        assert problems == []
    else:
        problem = only(problems)
        assert (problem.node_id, problem.input, problem.value) == ("1", name, link)
        assert problem.message.startswith("takes ") and f"of node {link[0]}" in problem.message and problem.fix


def test_unknown_classes_that_nothing_needs_are_left_out(classes):
    graph = {**chain(), "8": node("PreviewImage", images=["9", 0]), "9": node("Upscale", a=["3", 0])}
    workflow = Workflow(graph, classes)
    problems = workflow.validate()
    assert [(problem.node_id, problem.severity) for problem in problems] == [("8", "warning"), ("9", "warning")]
    assert "left out" in str(problems[0]) and "PreviewImage" in str(problems[0])
    assert ran(workflow)[0] == ["1", "2", "3", "4"]
    graph["3"]["inputs"]["a"] = ["9", 0]
    problems = {p.severity: p for p in Workflow(graph, classes).validate()}
    assert problems["warning"].node_id == "8"
    assert "needs ComfyUI for Upscale (node 9). Fix: add --comfyui PATH" in str(problems["error"])


def test_unknown_inputs_warn_and_are_not_passed(classes):
    workflow = Workflow({**chain(), "1": node("OTCA_Number", "First", value=1, valu=3)}, classes)
    problem = only(workflow.validate())
    assert (problem.node_id, problem.input, problem.value, problem.severity) == ("1", "valu", 3, "warning")
    assert "did you mean value" in problem.fix
    assert ran(workflow)[0] == ["1", "2", "3", "4"]


def test_only_ancestors_of_outputs_are_validated_and_there_must_be_one(classes):
    assert Workflow({**chain(), "9": node("OTCA_Number", value="x")}, classes).validate() == []
    assert "no output node" in only(Workflow({"1": node("OTCA_Number", value=1)}, classes).validate()).message


def test_cycles_name_their_nodes(classes):
    graph = {
        "1": node("OTCA_Number", value=1),
        "2": node("OTCA_Add", a=["1", 0], b=["3", 0]),
        "3": node("OTCA_Add", a=["1", 0], b=["2", 0]),
        "4": node("OTCA_Show", a=["2", 0]),
        "5": node("OTCA_Add", a=["5", 0], b=["1", 0]),
        "6": node("OTCA_Show", a=["5", 0]),
    }
    workflow = Workflow(graph, classes)
    named = [problem.message.split(" form ")[0].removeprefix("the nodes ") for problem in workflow.validate()]
    assert sorted((set(name.split(" -> ")) for name in named), key=len) == [{"5"}, {"2", "3"}]
    with pytest.raises(WorkflowError, match="cycle"):
        workflow.run()


def validated(classes, base, function, graph):
    classes[base].VALIDATE_INPUTS = staticmethod(function)
    return Workflow(graph, classes).validate()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda value: "value is odd. Fix: use 2" if value % 2 else True, "value is odd. Fix: use 2"),
        (lambda value: value != 1, "refused by VALIDATE_INPUTS, which returned False. Fix: give this node other"),
        (lambda value: 1 / (value - 1), "VALIDATE_INPUTS raised ZeroDivisionError: division by zero. Fix: give this"),
    ],
)
def test_validate_inputs_that_refuses_or_fails(classes, function, message):
    problems = validated(classes, "OTCA_Number", function, chain())
    assert f": {message}" in str(problems[0]) and 'node 1 "First"' in str(problems[0])


def test_validate_inputs_that_names_an_input_is_about_that_one_alone(classes):
    """ComfyUI marks every input that the function takes: one missing file was three to five errors."""
    told = "name: there is no file x. Fix: choose another one"
    problem = only(validated(classes, "OTCA_Options", lambda color, mode, name: told, {"1": options()}))
    assert (problem.input, problem.message, problem.fix) == ("name", "there is no file x", "choose another one")


def test_validate_inputs_replaces_the_checks_of_what_it_takes(classes):
    calls = []
    graph = {"1": options(color="blue", rate=-1.0, any=["2", 0]), "2": node("OTCA_Number", value=1)}
    found = validated(classes, "OTCA_Options", lambda color, any: calls.append((color, any)) or True, graph)
    assert only(found).input == "rate"  # color is its own to judge
    assert validated(classes, "OTCA_Options", lambda **inputs: calls.append(inputs) or True, graph) == []
    graph["1"] = options(rate=["2", 0])
    assert validated(classes, "OTCA_Options", lambda input_types: calls.append(input_types) or True, graph) == []
    assert calls == [
        ("blue", None),  # None for a link, as in ComfyUI
        {"color": "blue", "mode": 1, "name": "x", "on": True, "rate": -1.0, "any": None},
        {"rate": "NUMBER"},  # and the check of a link's type
    ]


def test_validate_inputs_is_not_asked_about_what_is_missing(classes):
    graph = {**chain(), "1": node("OTCA_Number")}
    problem = only(validated(classes, "OTCA_Number", lambda value: True, graph))
    assert problem.message == "required input is missing"


# --- set, find, titles ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["1:2:3.value", "My Seed.value", "Number.value", "OTCA_Number.value"])
def test_set_addresses(classes, address):
    workflow = Workflow({"1:2:3": node("OTCA_Number", "My Seed", value=1)}, classes)
    workflow.set(address, "42")
    assert workflow.graph["1:2:3"]["inputs"] == {"value": 42}
    assert workflow.run(targets=["1:2:3"]) == {"1:2:3": (42.0,)}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("color", "green", "green"),
        ("mode", "2", 2),
        ("name", "12", "12"),
        ("on", "False", False),
        ("on", "yes", True),
        ("rate", "1e-3", 0.001),
        ("rate", 2, 2.0),
        ("any", "[1, 2]", {"__value__": [1, 2]}),
        ("any", "words", "words"),
    ],
)
def test_set_parses_to_the_declared_type(classes, name, text, value):
    workflow = Workflow({"1": options()}, classes)
    workflow.set(f"1.{name}", text)
    stored = workflow.graph["1"]["inputs"][name]
    assert stored == value and type(stored) is type(value)
    linked = Workflow({"1": options(**{name: ["2", 0]}), "2": node("OTCA_Number", value=1)}, classes)
    linked.set(f"1.{name}", text)
    assert linked.validate() == [] and ran(linked)[0] == ["1"], "a link is replaced"


@pytest.mark.parametrize(
    ("address", "value", "expected"),
    [
        ("value", 1, ["'value' names no input", "NODE.INPUT"]),
        ("Frist.value", 1, ["no node 'Frist'", "did you mean First", '2 "Second"']),
        ("Number.value", 1, ["means several nodes", "1, 2"]),
        ("1.valu", 7, ["node 1", "input valu = 7", "did you mean value", "scale"]),
        ("1.value", "x", ["node 1", "input value = 'x'", "not a value of type INT", "from 0 to 100"]),
        ("3.a", "5", ["node 3", "input a = '5'", "takes a link of type NUMBER", "connect a NUMBER"]),
        ("5.color", "gren", ["node 5", "input color = 'gren'", "did you mean green"]),
        ("5.on", "perhaps", ["node 5", "input on = 'perhaps'", "BOOLEAN"]),
        ("6.x", "1", ["node 6", "PreviewImage is not known here"]),
    ],
)
def test_set_refusals(classes, address, value, expected):
    workflow = Workflow({**chain(), "5": options(), "6": node("PreviewImage", x=1)}, classes)
    before = workflow.graph
    with pytest.raises(WorkflowError) as caught:
        workflow.set(address, value)
    assert [part for part in expected if part not in str(caught.value)] == []
    assert workflow.graph == before


def test_find_title_advancing(classes):
    graph = {**chain(), "2": node("OTCA_Number", value=["1", 0]), "5": node("PreviewImage")}
    workflow = Workflow(graph, classes, {"OTCA_Show": "Show It"})
    assert workflow.find("Number") == workflow.find("OTCA_Number") == ["1", "2"] and workflow.find("Nothing") == []
    assert [workflow.title(node_id) for node_id in ("1", "4", "5")] == ["First", "Show It", "PreviewImage"]
    assert workflow.advancing() == [("1", "value", 1)]


# --- files ------------------------------------------------------------------------------------------------------


def test_load_save_and_copies(classes, tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"prompt": chain()}), encoding="utf-8-sig")
    workflow = Workflow.load(path, classes)
    assert workflow.graph == chain()
    workflow.graph["1"]["inputs"]["value"] = 50
    workflow.set("2.value", 9)
    workflow.save(path)
    again = Workflow.load(path, classes).graph
    assert again["1"]["inputs"] == {"value": 1} and again["2"]["inputs"] == {"value": 9}
    graph = chain()
    Workflow(graph, classes).set("1.value", 9)
    assert graph == chain()


def test_load_png(classes, tmp_path):
    graph, information = chain(), PngImagePlugin.PngInfo()
    graph["1"]["is_changed"] = [float("nan")]
    information.add_text("prompt", json.dumps(graph))
    information.add_text("workflow", "{}")
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png", pnginfo=information)
    Image.new("RGB", (2, 2)).save(tmp_path / "b.png")
    assert Workflow.load(tmp_path / "a.png", classes).graph == chain()
    with pytest.raises(WorkflowError, match=r"b\.png: this PNG carries no workflow"):
        Workflow.load(tmp_path / "b.png", classes)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.json", None, "no such file"),
        ("missing.png", None, "no such file"),
        ("a.json", b"{", "not readable as a workflow"),
        ("a.json", b"\xff\xfe", "not readable as a workflow"),
        ("a.png", b"no image", "not readable as a workflow"),
        ("a.json", b"{}", "an empty one"),
        ("a.json", b"[1]", "not a graph"),
        ("a.json", b'{"nodes": [], "links": []}', "UI format"),
    ],
)
def test_unreadable_files(classes, tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WorkflowError, match=message) as caught:
        Workflow.load(path, classes)
    fix = only(caught.value.problems).fix
    assert "File > Export (API)" in fix and "Save (API Format)" in fix


def test_entries_that_are_no_nodes_are_all_named(classes):
    graph = {**chain(), "7": "text", "8": {"inputs": {}}, "9": {"class_type": "OTCA_Show"}}
    with pytest.raises(WorkflowError) as caught:
        Workflow(graph, classes)
    assert [any(f"'{key}'" in str(problem) for key in "789") for problem in caught.value.problems] == [True] * 3
