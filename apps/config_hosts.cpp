#include <fmt/format.h>

#include <algorithm>

#include "apps/config_builder.h"

namespace troupe {
namespace {

template <class Row>
const Row* row_named(const std::vector<Row>& rows, const std::string& id) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.id == id; });
  return found == rows.end() ? nullptr : &*found;
}

template <class Row>
void add_names(std::vector<std::string>& names, const std::vector<Row>& rows) {
  for (const Row& row : rows) names.push_back(row.id);
}

bool written(const ConfigReader& table, std::initializer_list<std::string_view> keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](std::string_view key) { return table.node(key) != nullptr; });
}

}  // namespace

/// A node with an emulated device is played as a whole: by the rows that it names, not by what was
/// measured here.
bool ConfigBuilder::is_played(NodeId id) const {
  const std::vector<DeviceSpec>& devices = spec_.cluster.devices;
  return std::any_of(devices.begin(), devices.end(), [id](const DeviceSpec& device) {
    return device.node == id && device.kind == DeviceKind::emulated;
  });
}

double ConfigBuilder::time_scale_of(NodeId id) const {
  return is_played(id) ? spec_.emulation_time_scale : 1.0;
}

bool ConfigBuilder::profile_is_read() const {
  return profile_ || reader_.table("cluster").node("profile") == nullptr;
}

void ConfigBuilder::build_host(const ConfigReader& table, NodeId id) {
  NodeSpec& node = spec_.cluster.nodes[id.value];
  HostSpec& host = node.host;
  host.memory = table.bytes("host_memory");
  const CatalogueCpu* row =
      table.has("host") ? row_named(catalogue_.cpus, table.text("host")) : nullptr;
  if (table.has("host") && row == nullptr) {
    std::vector<std::string> known;
    add_names(known, catalogue_.cpus);
    report(table.at("host"),
           fmt::format("node.host = \"{}\" is no processor ([cpu.id]) of the device catalogue; {}",
                       table.text("host"), near_names_text(table.text("host"), known)));
  }
  const ProfiledCpu* measured = profile_ ? profile_->largest_cpu() : nullptr;
  if (table.has("host_memory_rate"))
    host.memory_rate = table.rate("host_memory_rate");
  else if (measured != nullptr && (row == nullptr || !is_played(id)))
    host.memory_rate = measured->reached.rates.memory / time_scale_of(id);
  else if (row != nullptr)
    host.memory_rate = achievable_memory_rate(*row) / time_scale_of(id);
  if (host.memory == 0 || host.memory_rate > 0 || written(table, {"host", "host_memory_rate"}) ||
      !profile_is_read())
    return;
  report(table.at("host_memory"),
         fmt::format("node.host_memory = \"{}\", but nothing says how fast the memory of node "
                     "\"{}\" is; add for example host = \"{}\" or host_memory_rate = \"20 GB/s\", "
                     "or name a file of troupe profile as cluster.profile",
                     table.text("host_memory"), node.name,
                     catalogue_.cpus.empty() ? "epyc_7763" : catalogue_.cpus.front().id));
}

void ConfigBuilder::build_disk(const ConfigReader& table, NodeId id) {
  NodeSpec& node = spec_.cluster.nodes[id.value];
  DiskSpec& disk = node.disk;
  disk.space = table.bytes("disk_space");
  static const std::vector<ProfiledDisk> none;
  const std::vector<ProfiledDisk>& profiled = profile_ ? profile_->disks : none;
  const std::string name = table.text("disk");
  const CatalogueDisk* row = row_named(catalogue_.disks, name);
  const ProfiledDisk* measured = row_named(profiled, name);
  if (table.has("disk") && row == nullptr && measured == nullptr && profile_is_read()) {
    std::vector<std::string> known;
    add_names(known, catalogue_.disks);
    add_names(known, profiled);
    report(
        table.at("disk"),
        fmt::format("node.disk = \"{}\" is no disk ([disk.id]) of the device catalogue{}; {}", name,
                    profile_ ? " or of " + profile_name_ : "", near_names_text(name, known)));
  }
  if (measured == nullptr && !profiled.empty() && (row == nullptr || !is_played(id)))
    measured = &profiled.front();
  if (measured != nullptr) {
    disk.read = measured->read;
    disk.write = measured->write;
  } else if (row != nullptr) {
    disk.read = row->read;
    disk.write = row->write;
  }
  disk.read /= time_scale_of(id);
  disk.write /= time_scale_of(id);
  if (table.has("disk_read")) disk.read = table.rate("disk_read");
  if (table.has("disk_write")) disk.write = table.rate("disk_write");
  const bool reads = disk.read > 0 || written(table, {"disk", "disk_read"});
  const bool writes = disk.write > 0 || written(table, {"disk", "disk_write"});
  if (disk.space == 0 || (reads && writes) || !profile_is_read()) return;
  report(table.at("disk_space"),
         fmt::format("node.disk_space = \"{}\", but nothing says how fast the disk of node \"{}\" "
                     "{}; add for example disk = \"{}\" or {}, or name a file of troupe profile "
                     "--disk as cluster.profile",
                     table.text("disk_space"), node.name,
                     reads    ? "writes"
                     : writes ? "reads"
                              : "reads and writes",
                     catalogue_.disks.empty() ? "nvme4_980_pro" : catalogue_.disks.front().id,
                     reads    ? "disk_write = \"2 GB/s\""
                     : writes ? "disk_read = \"3 GB/s\""
                              : "disk_read = \"3 GB/s\" and disk_write = \"2 GB/s\""));
}

void ConfigBuilder::build_host_link(const ConfigReader& table,
                                    const CatalogueDevice& row,
                                    DeviceSpec& device) {
  device.host_link = achievable_host_link(row, reader_.table("emulation").seconds("launch"),
                                          spec_.emulation_time_scale);
  if (table.has("host_link")) device.host_link.bandwidth = table.rate("host_link");
}

/// Bandwidth 0 would be a way that costs nothing.
void ConfigBuilder::check_host_links(NodeId id) {
  const NodeSpec& node = spec_.cluster.nodes[id.value];
  if (node.host.memory == 0 && node.disk.space == 0) return;
  for (std::size_t d = 0; d < spec_.cluster.devices.size(); ++d) {
    const DeviceSpec& device = spec_.cluster.devices[d];
    const bool row_is_known = device.kind == DeviceKind::emulated && !device.rates_from.empty();
    if (device.node != id || !row_is_known || device.host_link.bandwidth > 0) continue;
    report(device_models_[d],
           fmt::format("node.device.host_link is missing for emulated device \"{}\": node \"{}\" "
                       "has memory beside its devices, and row {} of {} has no pcie_gbs_dir; add "
                       "for example host_link = \"12 GB/s\"",
                       device.name, node.name, device.model, catalogue_name_));
  }
}

void ConfigBuilder::warn_without_effect(const ConfigReader& table, NodeId id) {
  const NodeSpec& node = spec_.cluster.nodes[id.value];
  const auto warn = [&](const char* key, const char* why) {
    if (table.node(key) != nullptr)
      warnings_.push_back(
          fmt::format("{}: node.{} has no effect: {}", to_string(table.at(key)), key, why));
  };
  const char* no_memory = "the node has no host_memory that training may fill";
  const char* no_space = "the node has no disk_space that training may fill";
  if (node.host.memory == 0)
    for (const char* key : {"host", "host_memory_rate"}) warn(key, no_memory);
  if (node.disk.space == 0)
    for (const char* key : {"disk", "disk_read", "disk_write"}) warn(key, no_space);
  else if (node.host.memory == 0)
    warn("disk_space", "what lies on disk passes through host memory, and there is no host_memory");
}

}  // namespace troupe
