"""What the canvas of a real ComfyUI is asked to do, in its own language."""

# The graph with its note, the preview of its samples and, if wanted, its rewards in a subgraph; `added` has their numbers.
BUILD = """async ([api, note, shown, added, rewards, models, notes]) => {
    app.graph.clear();
    await app.loadApiJson(api, "workflow");
    const ours = {}, find = id => ours[id] ?? app.graph.nodes.find(node => String(node.id) === String(id));
    for (const node of app.graph.nodes) {
        for (const widget of node.widgets ?? []) for (const linked of widget.linkedWidgets ?? []) {
            const still = ["OTCA_LoadFlowModel", "OTCA_MakeTrainable", "KSampler", "KSamplerAdvanced"].includes(node.type);
            const ordering = ["OTCA_PromptDataset", "OTCA_PreferencePairs"].includes(node.type) && widget.name === "seed";
            const stays = still || ordering;
            if (linked.name === "control_after_generate") linked.value = stays ? "fixed" : "increment";
        }
    }
    for (const [id, files] of Object.entries(models)) find(id).properties.models = files;
    const add = (type, id) => {
        const node = LiteGraph.createNode(type);
        app.graph.add(node);
        return ours[id] = node;
    };
    find(shown[0]).connect(shown[1], add("PreviewImage", added.preview), 0);
    const write = (id, title, text) => {
        const node = add("MarkdownNote", id);
        node.title = title;
        node.widgets[0].value = text;
        node.properties["OTCA note"] = true;
        node.color = "#432"; node.bgcolor = "#322a20";
    };
    if (note) write(added.note, "Read me", note);
    for (const [id, title, text] of notes) write(id, title, text);
    let inner = {};
    if (rewards.length) {
        // Which output leads where, and which value stands outside, before ComfyUI puts them together.
        const nodes = rewards.map(([id]) => find(id)), titles = nodes.map(node => node.title);
        const named = node => rewards[titles.indexOf(node.title)][1]; // as tables and curves call it
        const { subgraph, node } = app.graph.convertToSubgraph(new Set(nodes));
        node.title = subgraph.name = "Rewards";
        for (const own of [...subgraph.inputs]) subgraph.removeInput(own);
        subgraph.outputs.forEach((output, index) => {
            const [link] = output.linkIds.map(id => subgraph.links.get(id) ?? subgraph.links[id]);
            const from = subgraph.getNodeById(link.origin_id);
            output.label = named(from) + (from.widgets.find(widget => widget.name === "held_out")?.value ? " (held out)" : "");
            node.outputs[index].label = output.label;
        });
        for (const one of subgraph.nodes) {
            const held = one.widgets.find(widget => widget.name === "held_out")?.value;
            const title = named(one);
            const slot = one.inputs.findIndex(input => input.name === "coefficient");
            const value = one.widgets.find(widget => widget.name === "coefficient").value;
            if (!held) {
                subgraph.addInput(title, "FLOAT").connect(one.inputs[slot], one);
                node.widgets.find(widget => widget.name === title).value = value;
            }
        }
        subgraph.nodes.forEach((one, index) => { one.pos = [300, index * 260]; });
        subgraph.inputNode.pos = [0, 0];
        subgraph.outputNode.pos = [700, 0];
        ours[added.rewards] = node;
        const number = one => rewards[titles.indexOf(one.title)][0];
        inner = Object.fromEntries(subgraph.nodes.map(one => [one.id, number(one)]));
    }
    const numbers = Object.entries(ours).map(([id, node]) => [String(node.id), Number(id)]);
    const known = new Set(numbers.map(([id]) => id));
    for (const node of app.graph.nodes) if (!known.has(String(node.id))) numbers.push([String(node.id), Number(node.id)]);
    otcaTest.ours = new Map(numbers.map(([id, number]) => [number, id]));
    otcaTest.inner = inner;
}"""

# The least width and height of each node's body, not narrower than asked for, in the renderer that the page has. Widgets come
# and grow in frames of their own: it waits until nothing has changed for sixty frames, which on a busy machine is longer.
MEASURE = """async widths => {
    let x = 0;
    for (const [number, width] of widths) {
        const node = app.graph.getNodeById(otcaTest.ours.get(number));
        node.pos = [x, 0];
        node.setSize([width, node.computeSize()[1]]);
        x += 600;
    }
    app.canvas.ds.scale = 1;
    app.canvas.setDirty(true, true);
    const least = () => widths.map(([number]) => {
        const node = app.graph.getNodeById(otcaTest.ours.get(number));
        return [number, [0, 1].map(side => Math.ceil(Math.max(node.size[side], node.computeSize()[side])))];
    });
    const begun = performance.now();
    for (let before = "", same = 0; same < 60 || performance.now() - begun < 2500;) {
        await new Promise(done => requestAnimationFrame(done));
        const now = JSON.stringify(least());
        same = now === before ? same + 1 : 0;
        before = now;
        if (performance.now() - begun > 60000) throw new Error("the nodes do not come to rest");
    }
    return Object.fromEntries(least());
}"""

# Puts nodes in their places; says of each link where it leaves and comes, by our numbers.
ARRANGE = """places => {
    const numbers = new Map([...otcaTest.ours].map(([number, id]) => [id, number]));
    for (const [number, x, y, width, height] of places) {
        const node = app.graph.getNodeById(otcaTest.ours.get(number));
        node.pos = [x, y];
        node.setSize([width, height ?? node.computeSize()[1]]);
    }
    return [...app.graph.links.values()].map(link => {
        const from = app.graph.getNodeById(link.origin_id), to = app.graph.getNodeById(link.target_id);
        const out = from.getOutputPos?.(link.origin_slot) ?? from.getConnectionPos(false, link.origin_slot);
        const into = to.getInputPos?.(link.target_slot) ?? to.getConnectionPos(true, link.target_slot);
        return [link.id, [...out], [...into], `${numbers.get(String(link.origin_id))}.${link.origin_slot}`];
    });
}"""

ROUTE = """ways => {
    const shared = new Map();  // links of one output that begin by the same points have these in common
    for (const [id, points] of ways) {
        const link = app.graph.links.get(id);
        let way = `${link.origin_id}:${link.origin_slot}`;
        for (const point of points) {
            way += `|${point}`;
            const known = shared.get(way);
            if (known) {
                known.linkIds.add(id);
                link.parentId = known.id;
            } else shared.set(way, app.graph.createReroute(point, link));
        }
    }
    return [JSON.stringify(app.graph.serialize()), [...otcaTest.ours].map(([number, id]) => [id, number]), otcaTest.inner];
}"""

# The graph alone, clear of the page's own bars.
FRAME = """async () => {
    const boxes = [...app.graph.groups, ...app.graph.nodes].map(item => [...item.pos, ...item.size]);
    const far = side => Math.max(...boxes.map(box => box[side] + box[side + 2]));
    let x = Math.min(...boxes.map(box => box[0])) - 20, y = Math.min(...boxes.map(box => box[1])) - 50;
    let width = far(0) - x + 20, height = far(1) - y + 20;
    const left = 80, top = 150;
    const scale = Math.min((innerWidth - left - 20) / width, (innerHeight - top - 80) / height);
    app.canvas.ds.scale = scale;
    app.canvas.ds.offset = [left / scale - x, top / scale - y];
    app.canvas.setDirty(true, true);
    const box = app.canvas.canvas.getBoundingClientRect();
    return { x: box.left + left, y: box.top + top, width: width * scale, height: height * scale };
}"""
