// The scorers of all tables. Each has a file of its own beside this one.
#include "tests/bench/published/score.h"

namespace troupe::published {

std::vector<Score> score_schedules(const std::filesystem::path& folder);
std::vector<Score> score_zero_model_states(const std::filesystem::path& folder);
std::vector<Score> score_deepspeed_estimator(const std::filesystem::path& folder);
std::vector<Score> score_zero_infinity_memory(const std::filesystem::path& folder);
std::vector<Score> score_zero_infinity_bandwidth(const std::filesystem::path& folder);
std::vector<Score> score_formulas(const std::filesystem::path& folder);
std::vector<Score> score_schedule_formulas(const std::filesystem::path& folder);
std::vector<Score> score_partition_oracle(const std::filesystem::path& folder);
std::vector<Score> score_piper_oracle(const std::filesystem::path& folder);
std::vector<Score> score_vtrain_single(const std::filesystem::path& folder);
std::vector<Score> score_vtrain_multi(const std::filesystem::path& folder);
std::vector<Score> score_vtrain_all_reduce(const std::filesystem::path& folder);
std::vector<Score> score_megatron_sc21(const std::filesystem::path& folder);
std::vector<Score> score_korthikanti(const std::filesystem::path& folder);
std::vector<Score> score_bloom(const std::filesystem::path& folder);
std::vector<Score> score_ultrascale(const std::filesystem::path& folder);
std::vector<Score> score_zero_bubble(const std::filesystem::path& folder);
std::vector<Score> score_vocabulary_parallelism(const std::filesystem::path& folder);
std::vector<Score> score_heterogeneous_papers(const std::filesystem::path& folder);
std::vector<Score> score_sailor(const std::filesystem::path& folder);
std::vector<Score> score_torchtitan(const std::filesystem::path& folder);
std::vector<Score> score_internevo(const std::filesystem::path& folder);
std::vector<Score> score_internevo_memory(const std::filesystem::path& folder);
std::vector<Score> score_mosaicml(const std::filesystem::path& folder);
std::vector<Score> score_nemo(const std::filesystem::path& folder);

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {"pipeline_inflight_per_stage", score_schedules},
      {"zero_model_states", score_zero_model_states},
      {"deepspeed_memory_estimator", score_deepspeed_estimator},
      {"zero_infinity_memory", score_zero_infinity_memory},
      {"zero_infinity_bandwidth", score_zero_infinity_bandwidth},
      {"memory_and_flop_formulas", score_formulas},
      {"pipeline_schedule_formulas", score_schedule_formulas},
      {"partition_oracle_results", score_partition_oracle},
      {"piper_oracle_results", score_piper_oracle},
      {"vtrain_single_node_a100", score_vtrain_single},
      {"vtrain_multi_node_a100", score_vtrain_multi},
      {"vtrain_nccl_allreduce", score_vtrain_all_reduce},
      {"megatron_sc21", score_megatron_sc21},
      {"korthikanti_2022", score_korthikanti},
      {"hf_ultrascale_h100", score_ultrascale},
      {"bloom_prequel_a100", score_bloom},
      {"sailor_measured", score_sailor},
      {"torchtitan_llama", score_torchtitan},
      {"internevo_7b_a100", score_internevo},
      {"internevo_memory", score_internevo_memory},
      {"mosaicml_mpt_fsdp", score_mosaicml},
      {"nemo_megatron_bridge_perf", score_nemo},
      {"zero_bubble", score_zero_bubble},
      {"heterogeneous_papers", score_heterogeneous_papers},
      {"vocabulary_parallelism", score_vocabulary_parallelism},
  };
  return all;
}

}  // namespace troupe::published
