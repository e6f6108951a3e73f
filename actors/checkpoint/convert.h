/// Other programs' models in, and out again: Hugging Face folders and llama2.c files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint.h"
#include "planner/model.h"
#include "planner/result.h"

namespace troupe {

struct ImportOptions {
  bool allow_extra = false;          ///< tensors that the model does not have are left out, noted
  bool head_from_embedding = false;  ///< an untied model without a head gets a copy of its table
};

struct Imported {
  std::filesystem::path folder;
  ModelSpec model;
  std::vector<std::string> notes;  ///< what was left out or made up
};

/// A folder is read as Hugging Face's, a file as llama2.c's.
Result<Imported> import_model(const std::filesystem::path& source,
                              const std::filesystem::path& out,
                              const ImportOptions& options = {});

/// config.json with model.safetensors, or with model.safetensors.index.json and its shards; names
/// with or without "transformer." / "model."; F32, BF16, F16. Moments are zero, the step is 0.
/// `out` must not exist; it appears complete or not at all.
Result<Imported> import_hf(const std::filesystem::path& source,
                           const std::filesystem::path& out,
                           const ImportOptions& options = {});

/// Seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len; a negative
/// vocab_size means an untied head at the end), then float32 tensors by kind. Rotary pairs are
/// neighbours there: rows of wq and wk are permuted to half-split pairs. The size must be exact.
Result<Imported> import_llama2c(const std::filesystem::path& source,
                                const std::filesystem::path& out);

/// Writes a folder that Hugging Face's libraries load: config.json and one model.safetensors.
/// `out` must not exist; it appears complete or not at all.
Status export_hf(const Checkpoint& checkpoint, const std::filesystem::path& out);

}  // namespace troupe
