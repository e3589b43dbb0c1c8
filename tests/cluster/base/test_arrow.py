"""Arrow without pandas."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from sluice.cluster.base.arrow import without_pandas
without_pandas()
without_pandas()
import numpy as np
import pyarrow as pa
rows = pa.table({"a": pa.array(np.arange(3)), "b": pa.repeat(pa.scalar("x"), 3)})
assert rows.sort_by([("a", "descending")]).column("a").to_pylist() == [2, 1, 0]
print("pandas" in sys.modules)
"""


AGAIN = """
from sluice.cluster.base.arrow import with_pandas, without_pandas
without_pandas()
with_pandas()
import pyarrow as pa
import pandas as pd
print(pa.array(pd.Series([1, 2])).to_pylist(), pa.table({"a": [1]}).to_pandas().shape)
"""


def test_columns_are_made_without_importing_pandas() -> None:
    """Which takes a second of processor time, in each of a dozen processes."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_frames_are_made_where_there_is_pandas_again() -> None:
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 2] (1, 1)"
