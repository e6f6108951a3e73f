#include "apps/machine_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "planner/nearest.h"

namespace troupe {
namespace {

/// One figure of a row: how it is called in the file, and where it is in the value. One list serves
/// writing and reading.
template <class Row>
struct Figure {
  const char* key;
  double per_unit;  ///< value = figure x per_unit
  double* (*at)(Row&);
};

using Cpu = ProfiledCpu;
constexpr std::array cpu_figures{
    Figure<Cpu>{"mem_gbs", 1e9, [](Cpu& row) { return &row.reached.rates.memory; }},
    Figure<Cpu>{"fp32_tflops", 1e12, [](Cpu& row) { return &row.reached.f32.large; }},
    Figure<Cpu>{"fp32_small_tflops", 1e12, [](Cpu& row) { return &row.reached.f32.small; }},
    Figure<Cpu>{"fp32_thin_tflops", 1e12, [](Cpu& row) { return &row.reached.f32.thin; }},
    Figure<Cpu>{"bf16_tflops", 1e12, [](Cpu& row) { return &row.reached.bf16.large; }},
    Figure<Cpu>{"bf16_small_tflops", 1e12, [](Cpu& row) { return &row.reached.bf16.small; }},
    Figure<Cpu>{"bf16_thin_tflops", 1e12, [](Cpu& row) { return &row.reached.bf16.thin; }},
    Figure<Cpu>{"fp32_vector_tflops", 1e12, [](Cpu& row) { return &row.reached.rates.vector_f32; }},
    Figure<Cpu>{"launch_us", 1e-6, [](Cpu& row) { return &row.reached.rates.launch; }}};
constexpr std::array link_figures{
    Figure<ProfiledLink>{"latency_us", 1e-6,
                         [](ProfiledLink& row) { return &row.reached.latency; }},
    Figure<ProfiledLink>{"gbs_dir", 1e9, [](ProfiledLink& row) { return &row.reached.bandwidth; }}};
constexpr std::array disk_figures{
    Figure<ProfiledDisk>{"read_gbs", 1e9, [](ProfiledDisk& row) { return &row.read; }},
    Figure<ProfiledDisk>{"write_gbs", 1e9, [](ProfiledDisk& row) { return &row.write; }},
    Figure<ProfiledDisk>{"latency_us", 1e-6, [](ProfiledDisk& row) { return &row.read_latency; }}};

constexpr std::array layer_figures{
    Figure<LayerRatio>{"forward_x", 1, [](LayerRatio& row) { return &row.ratio.forward; }},
    Figure<LayerRatio>{"backward_input_x", 1,
                       [](LayerRatio& row) { return &row.ratio.backward_input; }},
    Figure<LayerRatio>{"backward_weight_x", 1,
                       [](LayerRatio& row) { return &row.ratio.backward_weight; }},
    Figure<LayerRatio>{"norm_x", 1, [](LayerRatio& row) { return &row.ratio.norm; }},
    Figure<LayerRatio>{"update_x", 1, [](LayerRatio& row) { return &row.ratio.update; }}};

/// A whole number of a layer's size.
struct SizeFigure {
  const char* key;
  std::uint32_t LayerSize::*at;
};
constexpr SizeFigure size_figures[]{{"width", &LayerSize::width},
                                    {"tokens", &LayerSize::tokens},
                                    {"sequence", &LayerSize::sequence},
                                    {"vocabulary", &LayerSize::vocabulary}};
constexpr std::array layer_kinds{LayerKind::embedding, LayerKind::block, LayerKind::head};
constexpr std::array layer_types{DType::f32, DType::bf16};
constexpr std::array layer_families{ModelFamily::gpt2, ModelFamily::llama};

constexpr const char* cpu_kind = "cpu";
constexpr const char* link_kind = "link";
constexpr const char* disk_kind = "disk";
constexpr const char* layer_kind_of_row = "layer";

template <class Row, std::size_t n>
nlohmann::ordered_json row_json(const Row& row,
                                const std::array<Figure<Row>, n>& figures,
                                const std::string& source) {
  nlohmann::ordered_json out;
  out["name"] = row.name;
  Row copy = row;
  if constexpr (std::is_same_v<Row, ProfiledCpu>) {
    out["threads"] = row.threads;
    out["mem_gb"] = static_cast<double>(row.memory) / 1e9;
  }
  for (const Figure<Row>& figure : figures) out[figure.key] = *figure.at(copy) / figure.per_unit;
  out["certainty"] = "measured";
  out["source"] = source;
  return out;
}

nlohmann::ordered_json layer_json(const LayerRatio& row, std::uint32_t threads) {
  nlohmann::ordered_json out;
  out["threads"] = threads;
  out["kind"] = troupe::to_string(row.size.kind);
  out["compute"] = troupe::to_string(row.size.compute);
  out["family"] = to_string(row.size.family);
  for (const SizeFigure& figure : size_figures) out[figure.key] = row.size.*figure.at;
  LayerRatio copy = row;
  for (const auto& figure : layer_figures) out[figure.key] = *figure.at(copy) / figure.per_unit;
  return out;
}

nlohmann::ordered_json rows_json(const MachineProfile& profile) {
  nlohmann::ordered_json out;
  for (const ProfiledCpu& row : profile.cpus)
    out[cpu_kind][row.id] = row_json(row, cpu_figures, profile.source);
  for (const ProfiledLink& row : profile.links)
    out[link_kind][row.id] = row_json(row, link_figures, profile.source);
  for (const ProfiledDisk& row : profile.disks)
    out[disk_kind][row.id] = row_json(row, disk_figures, profile.source);
  for (const ProfiledCpu& cpu : profile.cpus)
    for (std::size_t i = 0; i < cpu.layers.size(); ++i)
      out[layer_kind_of_row][fmt::format("{}_{}", cpu.id, i + 1)] =
          layer_json(cpu.layers[i], cpu.threads);
  return out;
}

std::string text_of(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// One table of a profile while it is read.
class RowReader {
 public:
  RowReader(const std::string& kind,
            const ConfigNode::Entry& entry,
            std::vector<ConfigProblem>& problems)
      : id_(kind + "." + entry.key), row_(entry.value), problems_(problems) {}

  std::string text(const char* key) {
    known_.emplace_back(key);
    const ConfigNode* node = row_.find(key);
    if (node == nullptr) return {};
    if (node->kind != ConfigNode::Kind::text)
      problems_.push_back(
          {node->at, fmt::format("{}.{} is {}, must be text", id_, key, to_string(node->kind))});
    return node->text;
  }
  /// Required, above 0.
  double number(const char* key, double most = 1e9) {
    known_.emplace_back(key);
    const ConfigNode* node = row_.find(key);
    if (node == nullptr) {
      problems_.push_back({row_.at, fmt::format("{} has no {}; write for example {} = 1.0, or "
                                                "measure again with troupe profile",
                                                id_, key, key)});
      return 0;
    }
    const bool is_number =
        node->kind == ConfigNode::Kind::integer || node->kind == ConfigNode::Kind::number;
    if (!is_number)
      problems_.push_back({node->at, fmt::format("{}.{} is {}, must be a number", id_, key,
                                                 to_string(node->kind))});
    else if (!(node->number > 0 && node->number <= most))
      problems_.push_back({node->at, fmt::format("{}.{} = {} is out of range (above 0, at most {})",
                                                 id_, key, node->number, most)});
    return is_number ? node->number : 0;
  }
  std::uint32_t whole(const char* key, double most) {
    const double value = number(key, most);
    const ConfigNode* node = row_.find(key);
    if (node != nullptr && node->kind == ConfigNode::Kind::number)
      problems_.push_back({node->at, fmt::format("{}.{} = {} must be a whole number; nearest: {}",
                                                 id_, key, value, std::llround(value))});
    return static_cast<std::uint32_t>(value);
  }
  /// One of these, by its name.
  template <class Value, std::size_t n, class Name>
  Value choice(const char* key, const std::array<Value, n>& values, const Name& name_of) {
    const std::string given = text(key);
    std::vector<std::string> names;
    for (const Value value : values) {
      if (name_of(value) == given) return value;
      names.emplace_back(name_of(value));
    }
    const ConfigNode* node = row_.find(key);
    problems_.push_back({node != nullptr ? node->at : row_.at,
                         fmt::format("{}.{} is \"{}\"; nearest legal value: \"{}\"", id_, key,
                                     given, nearest_of_all(given, names))});
    return values[0];
  }
  template <class Row, std::size_t n>
  void figures(Row& row, const std::array<Figure<Row>, n>& list) {
    for (const Figure<Row>& figure : list) *figure.at(row) = number(figure.key) * figure.per_unit;
  }
  /// After everything was asked for: reports what nobody asked for.
  void refuse_others() {
    for (const ConfigNode::Entry& entry : row_.entries)
      if (std::find(known_.begin(), known_.end(), entry.key) == known_.end())
        problems_.push_back(
            {entry.key_at, fmt::format("unknown key \"{}\" of {}; did you mean \"{}\"?", entry.key,
                                       id_, nearest_of_all(entry.key, known_))});
  }

 private:
  const std::string id_;
  const ConfigNode& row_;
  std::vector<ConfigProblem>& problems_;
  std::vector<std::string> known_;
};

/// A layer goes to the processor with as many threads, which stands further up.
void read_layer(RowReader& reader,
                const ConfigNode::Entry& entry,
                MachineProfile& profile,
                std::vector<ConfigProblem>& problems) {
  constexpr double most = 4294967295.0;
  LayerRatio row;
  const std::uint32_t threads = reader.whole("threads", 1024);
  row.size.kind =
      reader.choice("kind", layer_kinds, [](LayerKind kind) { return troupe::to_string(kind); });
  row.size.compute =
      reader.choice("compute", layer_types, [](DType type) { return troupe::to_string(type); });
  row.size.family =
      reader.choice("family", layer_families, [](ModelFamily family) { return to_string(family); });
  for (const SizeFigure& figure : size_figures)
    row.size.*figure.at = reader.whole(figure.key, most);
  reader.figures(row, layer_figures);
  const auto cpu = std::find_if(profile.cpus.begin(), profile.cpus.end(),
                                [&](const ProfiledCpu& one) { return one.threads == threads; });
  if (cpu != profile.cpus.end()) return cpu->layers.push_back(row);
  problems.push_back(
      {entry.key_at, fmt::format("layer.{}: no [cpu.id] above it has threads = {}; measure again "
                                 "with troupe profile",
                                 entry.key, threads)});
}

void read_row(const std::string& kind,
              const ConfigNode::Entry& entry,
              MachineProfile& profile,
              std::vector<ConfigProblem>& problems) {
  RowReader reader(kind, entry, problems);
  if (kind == layer_kind_of_row) {
    read_layer(reader, entry, profile, problems);
    return reader.refuse_others();
  }
  const std::string name = reader.text("name");
  (void)reader.text("certainty");
  profile.source = reader.text("source");
  if (kind == cpu_kind) {
    ProfiledCpu row{entry.key, name, 1, 0, {}, {}};
    row.threads = reader.whole("threads", 1024);
    row.memory = static_cast<Bytes>(std::llround(reader.number("mem_gb") * 1e9));
    reader.figures(row, cpu_figures);
    row.reached.rates.matmul_f32 = row.reached.f32.large;
    row.reached.rates.matmul_bf16 = row.reached.bf16.large;
    profile.cpus.push_back(std::move(row));
  } else if (kind == link_kind) {
    ProfiledLink row{entry.key, name, {}};
    reader.figures(row, link_figures);
    profile.links.push_back(std::move(row));
  } else {
    ProfiledDisk row{entry.key, name, 0, 0, 0};
    reader.figures(row, disk_figures);
    profile.disks.push_back(std::move(row));
  }
  reader.refuse_others();
}

}  // namespace

const ProfiledCpu* MachineProfile::cpu(std::uint32_t threads) const {
  const auto found = std::find_if(cpus.begin(), cpus.end(), [threads](const ProfiledCpu& row) {
    return row.threads == threads;
  });
  return found == cpus.end() ? nullptr : &*found;
}

const ProfiledCpu* MachineProfile::largest_cpu() const {
  const auto found = std::max_element(
      cpus.begin(), cpus.end(),
      [](const ProfiledCpu& a, const ProfiledCpu& b) { return a.threads < b.threads; });
  return found == cpus.end() ? nullptr : &*found;
}

const ProfiledLink* MachineProfile::link(std::string_view id) const {
  const auto found = std::find_if(links.begin(), links.end(),
                                  [id](const ProfiledLink& row) { return row.id == id; });
  return found == links.end() ? nullptr : &*found;
}

std::string to_toml(const MachineProfile& profile) {
  std::string out =
      "# Measured by troupe profile; a configuration uses it with [cluster] profile = \"FILE\".\n"
      "# Rates are what was reached, not peaks: medians of short runs. small: 64 x 64 by 64 x 64,\n"
      "# thin: 8 x 768 by 768 x 768, else 512 x 512 by 512 x 768 matrix products. [layer] rows: "
      "how\n"
      "# many times as long as by these rates (planner/cost.h) the actions of whole layers took.\n";
  const nlohmann::ordered_json rows = rows_json(profile);
  for (const auto& [kind, of_kind] : rows.items())
    for (const auto& [id, row] : of_kind.items()) {
      out += fmt::format("\n[{}.{}]\n", kind, id);
      for (const auto& [key, value] : row.items())
        out += value.is_number_float() ? fmt::format("{} = {:.6g}\n", key, value.get<double>())
                                       // JSON's escapes are TOML's
                                       : fmt::format("{} = {}\n", key, text_of(value));
    }
  return out;
}

std::string to_json(const MachineProfile& profile) {
  return rows_json(profile).dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

MachineProfile parse_machine_profile(std::string_view text,
                                     const std::string& name,
                                     std::vector<ConfigProblem>& problems) {
  MachineProfile profile;
  const ConfigNode root = parse_config_tree(text, name, problems);
  const std::vector<std::string> kinds{cpu_kind, link_kind, disk_kind, layer_kind_of_row};
  for (const ConfigNode::Entry& kind : root.entries) {
    if (std::find(kinds.begin(), kinds.end(), kind.key) == kinds.end()) {
      const std::string near = nearest_of_all(kind.key, kinds);
      problems.push_back(
          {kind.key_at, fmt::format("\"{}\" is no kind of row of a profile; nearest legal value: "
                                    "\"{}\", in a table like [{}.id]",
                                    kind.key, near, near)});
      continue;
    }
    for (const ConfigNode::Entry& row : kind.value.entries)
      if (row.value.is_table())
        read_row(kind.key, row, profile, problems);
      else
        problems.push_back({row.key_at, fmt::format("\"{}\" stands outside of a row; write it in a "
                                                    "table like [{}.id]",
                                                    row.key, kind.key)});
  }
  return profile;
}

}  // namespace troupe
