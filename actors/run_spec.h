/// Everything a run is told, as checked values: made from the configuration by apps/run_config,
/// from literals by tests. Functions below take the parts they use, never the whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/optimizer.h"
#include "planner/cluster.h"
#include "planner/model.h"
#include "planner/plan.h"

namespace troupe {

enum class TextFormat : std::uint8_t { text, jsonl };
enum class TokenizerKind : std::uint8_t { bytes, gpt2 };

/// Where tokens come from.
struct DataSpec {
  std::vector<std::string> files;
  TextFormat format = TextFormat::text;
  std::string jsonl_field = "text";
  TokenizerKind tokenizer = TokenizerKind::bytes;
  std::string tokenizer_folder;      ///< encoder.json and vocab.bpe, for gpt2
  std::string cache_folder;          ///< of token caches
  double validation_fraction = 0.1;  ///< the last part of each file
};

struct CheckpointSpec {
  std::uint64_t every_steps = 0;  ///< 0: only at the end
  std::uint32_t keep = 2;         ///< newest complete ones that are kept
  std::string resume_from;        ///< a checkpoint folder; empty: start fresh
};

struct EvaluationSpec {
  std::uint64_t every_steps = 0;  ///< 0: only at the end
  std::uint32_t batches = 8;      ///< fixed validation batches, the same each time
};

struct RunSpec {
  std::string name;             ///< [A-Za-z0-9._-]{1,128}
  std::string folder = "runs";  ///< the run's files go to folder/name
  std::uint64_t steps = 1;
  std::uint64_t seed = 0;
  std::uint64_t state_hash_every = 1;     ///< 0: never
  std::string listen_host = "127.0.0.1";  ///< loopback only
  std::uint16_t listen_port = 0;          ///< 0: any free one
  ModelSpec model;
  StepShape shape;
  AdamWSpec optimizer;
  LearningRateSpec learning_rate;
  DataSpec data;
  CheckpointSpec checkpoint;
  EvaluationSpec evaluation;
  /// Devices without rates yet where kind is cpu: they are measured at start.
  ClusterSpec cluster;
  /// Nodes with a process of their own that `troupe node --join` starts; the run waits for them.
  std::vector<NodeId> joining_nodes;
  PlanOptions plan;
  /// Emulated devices last this many times the time that the catalogue predicts for them. The rates
  /// in `cluster` are already that much slower; nobody applies this again.
  double emulation_time_scale = 1.0;
  Seconds request_timeout = 30;       ///< a peer that does not answer for so long is lost
  Seconds join_timeout = 600;         ///< what `joining_nodes` have to join in
  bool copy_between_devices = false;  ///< in-process links copy instead of passing references
};

}  // namespace troupe
