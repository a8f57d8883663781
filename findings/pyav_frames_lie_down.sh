#!/usr/bin/env bash
# PyAV 18.1.0: a decoded frame is the stored picture, whatever the file's display matrix says.
#
# Seen: a video of 64 x 128 stored as 128 x 64 with a rotation of 90 degrees, as telephones write it. `frame.rotation` is 90, and
# `to_ndarray` gives 64 rows of 128, lying down; the FFmpeg command and browsers turn it (checked in Chromium's <video>: 64 x 128, the
# stored left half below). numpy.rot90 by `frame.rotation // 90` gives what they show.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "av==18.1.0" "numpy==2.3.5"
"$folder/venv/bin/python" - "$folder" <<'PY'
import sys

import av
import numpy as np

stored, turned = f"{sys.argv[1]}/stored.mp4", f"{sys.argv[1]}/turned.mp4"
picture = np.zeros((64, 128, 3), np.uint8)
picture[:, :64, 0] = 255  # red on the left
with av.open(stored, "w") as container:
    stream = container.add_stream("libx264", rate=8)
    stream.width, stream.height, stream.pix_fmt = 128, 64, "yuv420p"
    for frame in [av.VideoFrame.from_ndarray(picture, format="rgb24")] * 4:
        container.mux(stream.encode(frame))
    container.mux(stream.encode())
with av.open(stored) as source, av.open(turned, "w") as target:
    stream = target.add_stream_from_template(source.streams.video[0])
    stream.set_display_rotation(90)
    for packet in source.demux(video=0):
        if packet.dts is not None:
            packet.stream = stream
            target.mux(packet)
with av.open(turned) as container:
    frame = next(container.decode(video=0))
shape = frame.to_ndarray(format="rgb24").shape
print(frame.rotation, shape)
assert (frame.rotation, shape) == (90, (64, 128, 3))
shown = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
assert shown.shape == (128, 64, 3) and shown[64:, :, 0].mean() > 240
PY
