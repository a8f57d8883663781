#!/usr/bin/env bash
# PyAV 18.1.0: `average_rate` of a Matroska or WebM video is what its header claims, and not how many frames a second it has.
#
# Seen: 12 frames over 2.2 seconds with a pause in the middle, written with a nominal rate of 30. In MP4 average_rate is 60/11, the frames
# by their duration. In Matroska it is 30 of the same frames at the same times, `frames` is 0 and the stream's duration None; only the
# container's duration and the packets' times tell it. Who picks "2 frames a second" by average_rate takes every 15th, of 12.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "av==18.1.0" "numpy==2.3.5"
"$folder/venv/bin/python" - <<'PY'
import io
from fractions import Fraction

import av
import numpy as np

TIMES = [0, 1, 2, 3, 4, 5, 60, 61, 62, 63, 64, 65]  # in thirtieths of a second


def rate(kind):
    content = io.BytesIO()
    with av.open(content, "w", format=kind) as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 30)
        for time in TIMES:
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), time, np.uint8), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with av.open(io.BytesIO(content.getvalue())) as container:
        stream = container.streams.video[0]
        times = [float(frame.time) for frame in container.decode(stream)]
        assert len(times) == 12 and abs(times[-1] - 65 / 30) < 0.01
        return stream.average_rate, stream.frames


told = {kind: rate(kind) for kind in ("mp4", "matroska")}
print(av.__version__, told)
assert told == {"mp4": (Fraction(60, 11), 12), "matroska": (Fraction(30), 0)}
PY
