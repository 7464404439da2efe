#!/usr/bin/env bash
# TensorStore (and with it Orbax) writes bfloat16, float8 and int4 arrays in both Zarr formats;
# zarr-python opens none of them, although it reads the metadata.
# Seen with ml_dtypes 0.6.0, numpy 2.4.6, tensorstore 0.1.86, zarr 3.1.6, on a CPU, with Python 3.11:
#   zarr bfloat16, float8_e4m3fn, int4 and zarr3 bfloat16, float8_e4m3fn, int4: ValueError: No Zarr data type found that matches ...
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ml_dtypes==0.6.0 numpy==2.4.6 tensorstore==0.1.86 zarr==3.1.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import ml_dtypes
import numpy as np
import tensorstore as ts
import zarr

for name in "bfloat16", "float8_e4m3fn", "int4":
    values = np.arange(4).astype(getattr(ml_dtypes, name))
    for driver in "zarr", "zarr3":
        folder = f"{driver}_{name}"
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": folder}}
        store = ts.open(spec, create=True, dtype=getattr(ts, name), shape=[4]).result()
        store.write(values).result()
        assert np.array_equal(store.read().result(), values)
        try:
            zarr.open(folder, mode="r")
        except ValueError as error:
            print(driver, name, error)
            assert "No Zarr data type" in str(error)
        else:
            raise SystemExit("zarr-python opens it now")
PYTHON
