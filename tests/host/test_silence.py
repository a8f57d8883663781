"""What a command says where nothing else is printed."""

import queue

from comfyui_otca.host import silence


def test_it_is_said_what_is_awaited_and_not_where_lines_come(monkeypatch):
    monkeypatch.setattr(silence, "FIRST", 0.01)
    lines = queue.Queue()
    with silence.broken(lines.put, "waiting for others") as quiet:
        assert lines.get(timeout=60).startswith("waiting for others … ")
        quiet.now('node 5 "Load CLIP"')
        while not (line := lines.get(timeout=60)).startswith('node 5 "Load CLIP" … '):
            assert line.startswith("waiting for others … ")
    monkeypatch.setattr(silence, "FIRST", 60)
    with silence.broken(lines.put, "waiting for others") as quiet:
        list(iter(lambda: lines.empty() or lines.get(), True))
        quiet.say("iteration 1")
    assert lines.get_nowait() == "iteration 1" and lines.empty()
