#!/usr/bin/env bash
# pyarrow 26.0.1: a Parquet column's total_uncompressed_size says nothing of how large the column is once it is read.
#
# Seen: a text of 10,000 letters in 2,000 rows. The file has 891 bytes, its metadata say 10,054 uncompressed, and the table that is read
# takes 20,008,000. A repeated value is filed once with indices (the default of every writer), and "uncompressed" is of those pages.
# Who looks at that number to see whether a table fits into memory is off by 2,000 here. Count while reading, by iter_batches.
#
# And ParquetFile.read(columns=["meta.style"]) gives two columns where there are a column of that name and a struct "meta" with a
# field "style"; read_table gives the one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "pyarrow==26.0.1"
"$folder/venv/bin/python" - <<'PY'
import io

import pyarrow
from pyarrow import parquet


def written(table):
    content = io.BytesIO()
    parquet.write_table(table, content)
    return content


repeated = written(pyarrow.table({"prompt": ["x" * 10_000] * 2_000}))
file = parquet.ParquetFile(repeated)
sizes = len(repeated.getvalue()), file.metadata.row_group(0).column(0).total_uncompressed_size, file.read().nbytes
dotted = written(pyarrow.table({"meta": [{"style": "oil"}], "meta.style": ["ink"]}))
names = parquet.ParquetFile(dotted).read(columns=["meta.style"]).column_names
plain = parquet.read_table(dotted, columns=["meta.style"]).column_names
print(pyarrow.__version__, sizes, names, plain)
assert sizes[0] < 2_000 and sizes[1] < 20_000 and sizes[2] > 20_000_000
assert names == ["meta", "meta.style"] and plain == ["meta.style"]
PY
