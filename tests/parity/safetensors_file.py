"""Reads and writes safetensors files: 8 bytes of header length, a JSON header, raw little-endian data."""

import json
import pathlib

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read(path):
    """Name -> tensor."""
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    body = bytearray(data[8 + length :])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        flat = torch.frombuffer(body[first:last], dtype=DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


def write(path, tensors):
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().contiguous().numpy().tobytes())


def read_folder(folder, wanted):
    """The tensors named in `wanted` (name -> shape) from all files of a checkpoint folder."""
    found = {}
    files = sorted(pathlib.Path(folder).rglob("*.safetensors"))
    for path in files:
        for name, tensor in read(path).items():
            if name not in wanted:
                continue
            if name in found and not torch.equal(found[name], tensor):
                raise SystemExit(f"{path}: {name} stands in two files with different values")
            if tuple(tensor.shape) != tuple(wanted[name]):
                raise SystemExit(
                    f"{path}: {name} has shape {tuple(tensor.shape)}, not {tuple(wanted[name])}"
                )
            found[name] = tensor
    missing = [name for name in wanted if name not in found]
    if missing:
        raise SystemExit(
            f"{folder}: {len(missing)} of {len(wanted)} tensors are missing from "
            f"{len(files)} safetensors files, first {missing[0]}"
        )
    return {name: found[name] for name in wanted}
