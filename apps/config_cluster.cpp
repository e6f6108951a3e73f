#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "apps/config_builder.h"
#include "kernels/stage.h"
#include "planner/plan_choice.h"

namespace troupe {
namespace {

/// Puts a text into the table where nobody wrote that key, as a default; returns what stands there.
std::string filled(ConfigNode& table, const char* key, const std::string& text) {
  ConfigNode* node = table.find(key);
  if (node != nullptr && !node->is_default) return node->text;
  const Position at = table.at;
  if (node == nullptr) node = &table.add(key, at);
  node->kind = ConfigNode::Kind::text;
  node->at = at;
  node->is_default = true;
  node->text = text;
  return text;
}

/// What nobody wrote is as measured; the tree says it as well, so that it reads back.
void take_profiled_link(ConfigNode& table, const LinkSpec& measured, LinkSpec& link) {
  const auto latency =
      parse_seconds(filled(table, "latency", fmt::format("{:.4g} us", measured.latency * 1e6)));
  const auto bandwidth =
      parse_rate(filled(table, "bandwidth", fmt::format("{:.4g} MB/s", measured.bandwidth / 1e6)));
  if (latency) link.latency = *latency;
  if (bandwidth) link.bandwidth = *bandwidth;
}

}  // namespace

void ConfigBuilder::load_catalogue() {
  const ConfigReader emulation = reader_.table("emulation");
  spec_.emulation_time_scale = emulation.has("time_scale") ? emulation.number("time_scale") : 1.0;
  catalogue_ = built_in_catalogue();
  catalogue_name_ = "conf/devices.toml";
  if (!emulation.has("catalogue")) return;
  ConfigNode& node = *table_node("emulation").find("catalogue");
  const std::string name = shown(node.text);
  const auto text = read_named_file(node, "emulation.catalogue");
  if (!text) return;
  catalogue_name_ = name;
  catalogue_ = parse_catalogue(*text, name, problems_);
}

void ConfigBuilder::load_profile() {
  if (!reader_.table("cluster").has("profile")) return;
  ConfigNode& node = *table_node("cluster").find("profile");
  profile_name_ = shown(node.text);
  const auto text = read_named_file(node, "cluster.profile");
  if (text) profile_ = parse_machine_profile(*text, profile_name_, problems_);
}

/// The content of the file that `node` names, whose path is settled; nothing where files are not
/// looked at, or it was reported.
std::optional<std::string> ConfigBuilder::read_named_file(ConfigNode& node,
                                                          const std::string& key) {
  const std::string written = node.text;
  const std::string path = settle_path(node, folder_);
  if (!options_.look_at_files) return std::nullopt;
  std::error_code failure;
  std::ifstream file(path, std::ios::binary);
  if (!std::filesystem::is_regular_file(path, failure) || !file) {
    report(node.at, fmt::format("{}: there is no file \"{}\"; it was looked for at {}", key,
                                written, shown(written)));
    return std::nullopt;
  }
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

/// Of a CPU device, where its number of threads was profiled.
void ConfigBuilder::take_profiled_rates(const ConfigReader& table, DeviceSpec& device) {
  if (!profile_) return;
  if (const ProfiledCpu* row = profile_->cpu(device.threads)) {
    device.rates = row->reached.rates;
    device.rates_from = profile_name_;
    return;
  }
  warnings_.push_back(
      fmt::format("{}: {} has no row for a processor with {} threads; device \"{}\" is measured at "
                  "the start instead",
                  to_string(table.at("threads")), profile_name_, device.threads, device.name));
}

/// Layers of the run's model on profiled devices, with microbatches of every size that a plan may
/// take, by the layers that were measured. Needs a model and a step's shape that hold.
void ConfigBuilder::price_profiled_layers() {
  if (!profile_ || !problems_.empty()) return;
  std::vector<StepShape> shapes = tried_shapes(spec_.shape);
  shapes.push_back(spec_.shape);
  std::vector<ModelProfile> layers;  // by shape
  for (DeviceSpec& device : spec_.cluster.devices) {
    const ProfiledCpu* row = profile_->cpu(device.threads);
    if (device.kind != DeviceKind::cpu || row == nullptr || row->layers.empty()) continue;
    if (layers.empty())
      for (const StepShape& shape : shapes) layers.push_back(profile_model(spec_.model, shape));
    std::map<LayerKind, SecondsBySize> by_size;
    for (std::size_t i = 0; i < shapes.size(); ++i)
      for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head})
        by_size[kind][shapes[i].microbatch_size] = seconds_by_ratios(
            row->layers, size_of(spec_.model, shapes[i], kind), layers[i].of(kind), device.rates);
    set_measured(device, by_size, spec_.shape.microbatch_size);
  }
}

void ConfigBuilder::build_nodes() {
  ConfigNode* list = root_.find("node");
  const std::vector<ConfigReader> nodes = reader_.tables("node");
  if (list == nullptr)
    return report(
        root_.at,
        "there is no [[node]]; the smallest cluster is [[node]] name = \"local\" with one "
        "[[node.device]] name = \"cpu0\", memory = \"4 GiB\"");
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const ConfigReader& table = nodes[n];
    const NodeId id{static_cast<std::uint32_t>(n)};
    check_name(table, "name", "node.name");
    NodeSpec node;
    node.name = table.text("name");
    node.own_process = table.boolean("process");
    if (table.has("name")) {
      const auto [known, fresh] = node_places_.try_emplace(node.name, table.at("name"));
      if (!fresh)
        report(table.at("name"),
               fmt::format("node.name = \"{}\" is taken by the node at {}; nearest legal value: "
                           "\"{}-{}\"",
                           node.name, to_string(known->second), node.name, n));
    }
    if (table.boolean("joins")) {
      if (!node.own_process && table.has("process"))
        report(table.at("joins"),
               "node.joins = true needs node.process = true: only a process of its own can join");
      spec_.joining_nodes.push_back(id);
    }
    spec_.cluster.nodes.push_back(node);
    ConfigNode& item = list->items[n];
    const std::vector<ConfigReader> devices = table.tables("device");
    ConfigNode* device_list = item.find("device");
    if (devices.empty() && (device_list == nullptr || !device_list->bad))
      report(table.at(),
             fmt::format("node \"{}\" has no device; add [[node.device]] below it", node.name));
    for (std::size_t d = 0; d < devices.size(); ++d)
      build_device(devices[d], device_list->items[d], id);
    build_host(table, id);
    build_disk(table, id);
    check_host_links(id);
    warn_without_effect(table, id);
  }
}

void ConfigBuilder::build_device(const ConfigReader& table, ConfigNode& node, NodeId owner) {
  check_name(table, "name", "node.device.name");
  DeviceSpec device;
  device.name = table.text("name");
  device.node = owner;
  device.kind = table.text("kind") == "emulated" ? DeviceKind::emulated : DeviceKind::cpu;
  device.threads = table.integer32("threads");
  device.memory = table.bytes("memory");
  const auto index = static_cast<std::uint32_t>(spec_.cluster.devices.size());
  if (table.has("name")) {
    const auto [known, fresh] = device_places_.try_emplace(device.name, table.at("name"));
    if (fresh)
      device_index_[device.name] = index;
    else
      report(table.at("name"),
             fmt::format(
                 "node.device.name = \"{}\" is taken by the device at {}; nearest legal value: "
                 "\"{}-{}\"",
                 device.name, to_string(known->second), device.name, index));
  }
  if (device.kind == DeviceKind::emulated) {
    play_catalogue_row(table, node, device);
  } else if (table.has("kind")) {
    if (table.has("model"))
      report(table.at("model"),
             fmt::format(
                 "node.device.model = \"{}\" on a cpu device{}; only kind = \"emulated\" plays "
                 "a device of the catalogue",
                 table.text("model"), place(table, "kind", "node.device.kind")));
    if (table.node("host_link") != nullptr)
      report(table.at("host_link"),
             fmt::format("node.device.host_link on cpu device \"{}\"{}, which works in its node's "
                         "memory itself; remove the key, or take kind = \"emulated\"",
                         device.name, place(table, "kind", "node.device.kind")));
    take_profiled_rates(table, device);
    if (table.node("memory") == nullptr)
      report(
          table.at(),
          fmt::format("node.device.memory is missing for cpu device \"{}\"; add for example memory "
                      "= \"4 GiB\"",
                      device.name));
  }
  device_models_.push_back(table.at(table.node("model") != nullptr ? "model" : "name"));
  spec_.cluster.devices.push_back(std::move(device));
}

void ConfigBuilder::play_catalogue_row(const ConfigReader& table,
                                       ConfigNode& node,
                                       DeviceSpec& device) {
  if (table.node("model") == nullptr)
    return report(table.at(),
                  fmt::format("node.device.model is missing for emulated device \"{}\"; add for "
                              "example model = \"v100_pcie_16\"",
                              device.name));
  if (!table.has("model")) return;
  device.model = table.text("model");
  const std::vector<CatalogueDevice>& rows = catalogue_.accelerators;
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [&](const auto& known) { return known.id == device.model; });
  if (row == rows.end()) {
    std::vector<std::string> known;
    known.reserve(rows.size());
    for (const CatalogueDevice& entry : rows) known.push_back(entry.id);
    return report(table.at("model"),
                  fmt::format("node.device.model = \"{}\" is not in the device catalogue; {}",
                              device.model, near_names_text(device.model, known)));
  }
  const ConfigReader emulation = reader_.table("emulation");
  device.rates_from = catalogue_name_;
  device.rates = achievable_rates(*row, emulation.seconds("launch"), spec_.emulation_time_scale);
  build_host_link(table, *row, device);
  if (table.node("memory") != nullptr || !emulation.has("memory_scale")) return;
  device.memory = static_cast<Bytes>(
      std::llround(static_cast<double>(row->memory) * emulation.number("memory_scale")));
  const Position at = node.at;
  ConfigNode& memory = node.add("memory", at);
  memory.kind = ConfigNode::Kind::text;
  memory.at = at;
  memory.is_default = true;
  memory.text = fmt::format("{} B", device.memory);
}

void ConfigBuilder::build_links() {
  const ConfigReader link = reader_.table("link");
  spec_.copy_between_devices = link.boolean("copy_in_process");
  const ConfigReader same = link.table("same_process");
  spec_.cluster.same_process = {same.seconds("latency"), same.rate("bandwidth")};
  const ConfigReader between = link.table("between_processes");
  spec_.cluster.between_processes = {between.seconds("latency"), between.rate("bandwidth")};
  if (profile_) {
    if (const ProfiledLink* copies = profile_->link("in_process");
        copies != nullptr && spec_.copy_between_devices)
      take_profiled_link(*table_node("link").find("same_process"), copies->reached,
                         spec_.cluster.same_process);
    if (const ProfiledLink* loopback = profile_->link("between_processes"))
      take_profiled_link(*table_node("link").find("between_processes"), loopback->reached,
                         spec_.cluster.between_processes);
  }
  for (const ConfigReader& table : link.tables("override")) build_override(table);
  for (const ConfigReader& table : reader_.table("emulation").tables("disturbance"))
    build_disturbance(table);
}

void ConfigBuilder::build_override(const ConfigReader& table) {
  std::optional<std::uint32_t> from;
  std::optional<std::uint32_t> to;
  if (table.has("from"))
    from = device_named(table.at("from"), "link.override.from", table.text("from"));
  if (table.has("to")) to = device_named(table.at("to"), "link.override.to", table.text("to"));
  if (!from || !to) return;
  if (*from == *to)
    return report(table.at("to"),
                  fmt::format("link.override.to = \"{}\" is the sending device{}; a link joins two "
                              "devices",
                              table.text("to"), place(table, "from", "link.override.from")));
  const LinkSpec link{table.seconds("latency"), table.rate("bandwidth")};
  if (!spec_.cluster.overrides.try_emplace({*from, *to}, link).second)
    report(
        table.at("from"),
        fmt::format("the link from \"{}\" to \"{}\" has an override already; remove one of the two",
                    table.text("from"), table.text("to")));
}

void ConfigBuilder::build_disturbance(const ConfigReader& table) {
  const std::string path = "emulation.disturbance.";
  const auto named = [&](const char* key) -> std::optional<std::uint32_t> {
    return table.has(key) ? device_named(table.at(key), path + key, table.text(key)) : std::nullopt;
  };
  const bool device = table.node("device") != nullptr;
  const bool link = table.node("from") != nullptr || table.node("to") != nullptr;
  if (device == link || (link && (table.node("from") == nullptr || table.node("to") == nullptr)))
    return report(table.at(),
                  "[[emulation.disturbance]] names a device, or from and to of a link; "
                  "write for example device = \"gpu0\"");
  const auto from = named(device ? "device" : "from");
  const auto to = named(device ? "device" : "to");
  if (!from || !to) return;
  if (device && spec_.cluster.devices[*from].kind != DeviceKind::emulated)
    return report(table.at("device"),
                  fmt::format("emulation.disturbance.device = \"{}\" is a cpu device; only kind = "
                              "\"emulated\" can be told how long to take",
                              table.text("device")));
  if (link && *from == *to)
    return report(table.at("to"),
                  fmt::format("emulation.disturbance.to = \"{}\" is the sending "
                              "device{}; a link joins two devices",
                              table.text("to"), place(table, "from", path + "from")));
  Disturbance disturbance{DeviceId{*from}, DeviceId{*to}, table.number("factor"),
                          table.integer("first_step")};
  if (table.has("last_step")) disturbance.last_step = table.integer("last_step");
  if (table.usable({"first_step", "last_step"}) && disturbance.last_step < disturbance.first_step)
    return report(
        table.at("last_step"),
        fmt::format("emulation.disturbance.last_step = {} is before first_step = {}{}; "
                    "nearest legal value: {}",
                    disturbance.last_step, disturbance.first_step,
                    place(table, "first_step", path + "first_step"), disturbance.first_step));
  spec_.cluster.disturbances.push_back(disturbance);
}

std::optional<std::uint32_t> ConfigBuilder::device_named(const Position& at,
                                                         const std::string& path,
                                                         const std::string& name) {
  const auto found = device_index_.find(name);
  if (found != device_index_.end()) return found->second;
  if (device_index_.empty()) return std::nullopt;  // reported where the devices are
  std::vector<std::string> known;
  for (const auto& [device, index] : device_index_) known.push_back(device);
  report(at, fmt::format("{} = \"{}\" is no device of this file; nearest legal value: \"{}\"", path,
                         name, nearest_of_all(name, known)));
  return std::nullopt;
}

}  // namespace troupe
