/// From a checked configuration tree to a RunSpec: reads the values and refuses combinations that
/// cannot work, naming the places of all keys involved.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/run_spec.h"
#include "apps/config_check.h"
#include "apps/device_catalogue.h"
#include "apps/machine_profile.h"
#include "apps/run_config.h"

namespace troupe {

class ConfigBuilder {
 public:
  /// `root` has been through check_against_table; paths in it are made absolute. Outlives this.
  ConfigBuilder(ConfigNode& root,
                const std::string& file,
                const ConfigOptions& options,
                std::vector<ConfigProblem>& problems);

  /// Meaningful only when no problem was reported, here or before.
  RunSpec build();
  const Architecture& architecture() const { return architecture_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  // config_values.cpp
  void build_run();
  void build_model();
  void check_heads(const ConfigReader& model);
  void check_model(const ConfigReader& model);
  void build_data();
  void check_vocabulary();
  void build_training();
  void build_microbatches(const ConfigReader& training);
  void build_optimizer();
  void build_learning_rate();
  void build_checkpoints();
  void build_network();
  // config_cluster.cpp
  void load_catalogue();
  void load_profile();
  std::optional<std::string> read_named_file(ConfigNode& node, const std::string& key);
  void take_profiled_rates(const ConfigReader& table, DeviceSpec& device);
  void price_profiled_layers();
  void build_nodes();
  void build_device(const ConfigReader& table, ConfigNode& node, NodeId owner);
  void play_catalogue_row(const ConfigReader& table, ConfigNode& node, DeviceSpec& device);
  // config_hosts.cpp
  void build_host(const ConfigReader& table, NodeId id);
  void build_disk(const ConfigReader& table, NodeId id);
  void build_host_link(const ConfigReader& table, const CatalogueDevice& row, DeviceSpec& device);
  void check_host_links(NodeId id);
  void warn_without_effect(const ConfigReader& table, NodeId id);
  bool is_played(NodeId id) const;
  /// That what is known of a node's host and disk is divided by.
  double time_scale_of(NodeId id) const;
  /// False: one is named and could not be, or was not to be, read.
  bool profile_is_read() const;
  // config_cluster.cpp
  void build_links();
  void build_override(const ConfigReader& table);
  void build_disturbance(const ConfigReader& table);
  // config_plan.cpp
  void build_plan();
  void build_stages(const ConfigReader& plan);
  void check_recompute(const ConfigReader& plan);
  void build_pinned_stages(const ConfigReader& plan);
  void build_cuts(const ConfigReader& plan);
  void check_coverage();
  void check_bf16();

  void report(const Position& at, std::string text);
  /// " (model.width at file:3:9)"; empty when the key is a default.
  std::string place(const ConfigReader& table, std::string_view name, std::string_view path) const;
  void check_name(const ConfigReader& table, std::string_view key, std::string_view path);
  /// The index of a device by name; reports an unknown one.
  std::optional<std::uint32_t> device_named(const Position& at,
                                            const std::string& path,
                                            const std::string& name);
  /// Makes a path absolute in the tree and returns it. `base`: the folder it is relative to.
  std::string settle_path(ConfigNode& node, const std::filesystem::path& base);
  /// The path as it is shown: relative to the folder of the file.
  std::string shown(const std::string& path) const;
  ConfigNode& table_node(std::string_view path);

  ConfigNode& root_;
  ConfigReader reader_;
  std::string file_;
  std::filesystem::path folder_;  ///< of the file
  const ConfigOptions& options_;
  std::vector<ConfigProblem>& problems_;
  std::vector<std::string> warnings_;
  DeviceCatalogue catalogue_;
  std::string catalogue_name_;  ///< for people
  std::optional<MachineProfile> profile_;
  std::string profile_name_;
  std::map<std::string, Position> node_places_;
  std::map<std::string, Position> device_places_;
  std::map<std::string, std::uint32_t> device_index_;
  std::vector<Position> device_models_;  ///< where each device's model stands, by device
  std::vector<Position> stage_places_;   ///< where each pinned stage's layers stand
  Architecture architecture_;
  RunSpec spec_;
};

}  // namespace troupe
